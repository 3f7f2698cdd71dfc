-- needs: slice, give_back
-- Ends claims on slices of a closing batch, so that it no longer waits for its lane jobs.
-- ARGV: batch id
-- Returns how many; if it is MAX_CALL_ENTRIES, there may be more.
local id = ARGV[1]
local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane')
local status, plan, lanes = batch[1], batch[2], words(batch[3])
if not plan or not (status == 'finalizing' or status == 'cancelling') then return 0 end
local indexes = redis.call('SRANDMEMBER', ns .. 'inflight:' .. id, MAX_CALL_ENTRIES)
for _, index in ipairs(indexes) do
  local slice = cjson.decode(redis.call('HGET', plan_key(id, plan), index))
  give_back(lanes[(slice[6] or 0) + 1], id, index, 'claim_expired')
end
return #indexes
