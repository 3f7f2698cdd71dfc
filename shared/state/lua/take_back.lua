-- needs: slice, give_back
-- Ends claims on slices of a batch that is closing, so that it no longer waits for its lane jobs, or on
-- slices of a paused batch that have not begun.
-- ARGV: batch id, '1' for only those that have not begun
-- Returns how many; if it is MAX_CALL_ENTRIES, there may be more.
local id, is_unbegun = ARGV[1], ARGV[2] == '1'
local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane', 'paused')
local status, plan, lanes, is_paused = batch[1], batch[2], words(batch[3]), batch[4]
local is_closing = status == 'finalizing' or status == 'cancelling'
if not plan or not (is_closing or (is_unbegun and is_paused)) then return 0 end
local indexes
if is_unbegun then
  indexes = redis.call('SDIFF', ns .. 'inflight:' .. id, ns .. 'begun:' .. id)
else
  indexes = redis.call('SRANDMEMBER', ns .. 'inflight:' .. id, MAX_CALL_ENTRIES)
end
local count = math.min(#indexes, MAX_CALL_ENTRIES)
for i = 1, count do
  local slice = cjson.decode(redis.call('HGET', plan_key(id, plan), indexes[i]))
  local lane = lanes[(slice[6] or 0) + 1]
  give_back(lane, id, indexes[i], is_closing and 'claim_expired' or 'paused')
end
return count
