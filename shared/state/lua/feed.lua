-- Puts the lane's ready list in the given order; what was claimed or
-- paused meanwhile stays out of it.
-- ARGV: lane, then at most 100 members `batch:index`, the first to run first.
local lane, ready, fed = ARGV[1], lane_key(ARGV[1], 'ready'), 0
for rank = 2, #ARGV do
  local member = ARGV[rank]
  local id, index = string.match(member, '^(.*):(%d+)$')
  if redis.call('ZSCORE', ready, member) then
    redis.call('ZADD', ready, 'XX', rank, member)
  else
    local batch = redis.call('HMGET', batch_key(id), 'plan', 'paused', 'lane')
    local pending = batch[1] and pending_key(id, batch[1], words(batch[3]), lane)
    if batch[1] and not batch[2] and redis.call('ZREM', pending, index) == 1 then
      line_up(lane, id, index, rank)
      fed = fed + 1
      if redis.call('ZCARD', pending) == 0 then unwait(lane, id) end
    end
  end
end
if fed > 0 then ring('lane:' .. lane) end
return fed
