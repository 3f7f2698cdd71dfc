-- Ends claims on slices of a batch that is closing: it waits for its lane jobs no longer.
-- ARGV: batch id
-- Returns how many, at most 100.
local id = ARGV[1]
local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane')
if not batch[2] or not (batch[1] == 'finalizing' or batch[1] == 'cancelling') then return 0 end
local lanes = words(batch[3])
local indexes = redis.call('SRANDMEMBER', ns .. 'inflight:' .. id, 100)
for _, index in ipairs(indexes) do
  local slice = cjson.decode(redis.call('HGET', ns .. 'plan:' .. id .. ':' .. batch[2], index))
  give_back(lanes[(slice[6] or 0) + 1], id, index, 'claim_expired')
end
return #indexes
