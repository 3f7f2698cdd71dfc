-- Counters of the whole fleet, which only ever grow: `<what> <lane> <whose>`, for metrics.
local function add_total(what, lane, whose, amount)
  if amount > 0 then
    redis.call('HINCRBY', ns .. 'totals', what .. ' ' .. lane .. ' ' .. whose, int(amount))
  end
end
