-- Rate limits, as a leaky bucket. Calls may come in a burst; they become free again evenly.

-- What one more call now would meet, at a limit of `calls` in `period` microseconds: how long it has
-- to wait (0: not at all), how many more could follow it, how long until all calls are free again,
-- and the mark to store if it is let in. It counts as `cost` calls; as one without it.
local function rate_status(key, calls, period, cost)
  local gap = period / calls
  local before = math.max(tonumber(redis.call('GET', key) or 0), now_us)
  local after = before + gap * (cost or 1)
  local wait = math.floor(after - now_us - period)
  if wait > 0 then return wait, 0, math.ceil(before - now_us), nil end
  -- The thousandth corrects rounding: microseconds are at the limit of a number's precision.
  return 0, math.floor((now_us + period - after) / gap + 0.001), math.ceil(after - now_us), after
end

-- Stores the mark of `rate_status`. In memory only: since each command is on disk before its answer,
-- a call that only reads would otherwise cost a write.
local function count_call(key, mark)
  redis.set_repl(redis.REPL_NONE)
  local life = math.max(math.ceil((mark - now_us) / 1000), 1)
  redis.call('SET', key, string.format('%.0f', mark), 'PX', int(life))
  redis.set_repl(redis.REPL_ALL)
end
