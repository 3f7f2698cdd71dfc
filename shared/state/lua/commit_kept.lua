-- needs: slice, part, served
-- Makes parts of what was kept of a closing batch's slices: they will not run again.
-- ARGV: batch id
-- Returns how many slices it looked at; if it is MAX_CALL_ENTRIES, there may be more.
local id = ARGV[1]
local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane', 'tenant')
local status, plan, lanes = batch[1], batch[2], words(batch[3])
if not plan or not (status == 'finalizing' or status == 'cancelling') then return 0 end
if redis.call('SCARD', ns .. 'inflight:' .. id) > 0 then return 0 end
local indexes = redis.call('HKEYS', ns .. 'kept:' .. id)
local count = math.min(#indexes, MAX_CALL_ENTRIES)
for i = 1, count do
  local index = indexes[i]
  local part = redis.call('HGET', ns .. 'kept:' .. id, index)
  local slice = cjson.decode(redis.call('HGET', plan_key(id, plan), index))
  local lane = lanes[(slice[6] or 0) + 1]
  redis.call('HDEL', ns .. 'kept:' .. id, index)
  if redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 0
    and redis.call('HEXISTS', batch_key(id), 'lane_failed:' .. lane) == 0 then
    local usage = cjson.decode(part)[6]
    record_part(id, lane, batch[3], index, part, usage)
    charge(lane, batch[4], used_tokens(usage))
  end
end
return count
