-- needs: slice, ready, waiting
-- Puts the lane's ready list in the given order. Slices that were claimed or paused meanwhile stay out.
-- ARGV: lane, how many slices are to be ready, then their members `batch:index`, the first to run first,
-- then the members that are to be pending again
-- Returns how many slices became ready.
local lane, ready, fed = ARGV[1], lane_key(ARGV[1], 'ready'), 0
local last = 2 + tonumber(ARGV[2])
for rank = 3, last do
  local member = ARGV[rank]
  local id, index = split_member(member)
  if redis.call('ZSCORE', ready, member) then
    redis.call('ZADD', ready, 'XX', rank, member)
  else
    local batch = redis.call('HMGET', batch_key(id), 'plan', 'paused', 'lane')
    local pending = batch[1] and pending_key(id, batch[1], words(batch[3]), lane)
    if batch[1] and not batch[2] and redis.call('ZREM', pending, index) == 1 then
      make_ready(lane, id, index, rank)
      fed = fed + 1
      if redis.call('ZCARD', pending) == 0 then stop_waiting(lane, id) end
    end
  end
end
for i = last + 1, #ARGV do
  local id, index = split_member(ARGV[i])
  local batch = redis.call('HMGET', batch_key(id), 'plan', 'lane', 'status')
  if redis.call('ZREM', ready, ARGV[i]) == 1 and batch[3] == 'in_progress' then
    redis.call('ZADD', pending_key(id, batch[1], words(batch[2]), lane), index, index)
    start_waiting(lane, id)
  end
end
if fed > 0 then ring('lane:' .. lane) end
return fed
