-- needs: lifecycle, event, quota, scores, file, pack, garbage, transition, restore
-- Ends a batch as its commit in S3 says.
-- ARGV: batch id, and a JSON object: `record` and `fields` (field and value pairs before and of its
-- end), `event`, `sequence` and `at_ms`, `files`, `garbage`, `garbage_later`, `input_file`, `base`
-- (larger than the number of any event), `silent` (whether the end is not announced), `metadata` (if a
-- client has changed it since; null if not)
-- Returns 'made', 'mended' or 'ended': a batch that has ended is not changed.
local id, restored, key = ARGV[1], cjson.decode(ARGV[2]), batch_key(ARGV[1])
local old_status = redis.call('HGET', key, 'status')
if old_status and FINAL[old_status] then return 'ended' end
local input_file = restored.input_file ~= '' and restored.input_file or nil
if old_status then detach(id) end
redis.call('DEL', key)
redis.call('HSET', key, unpack(restored.record))
local values = redis.call('HMGET', key, 'status', 'tenant', 'created_at')
keep_pack(id, input_file)
-- Counted in, because its end counts it out.
if values[1] == 'in_progress' then count_in_queue(id, 1) end
local index = ns .. 'batches:' .. values[2]
redis.call('ZADD', index, 'NX', past_score(index, tonumber(values[3]), id), id)
if input_file then write_file(input_file, true) end
for _, file in ipairs(restored.files) do write_file(file, true) end
local pin = pin_of(restored.sequence, restored.at_ms)
pin.silent = restored.silent
local outcome = transition(id, restored.event, restored.fields, pin)
if outcome ~= 'ok' then error('a commit that contradicts itself: ' .. id .. ' ' .. outcome) end
if restored.silent then
  local changes = ns .. 'changes:' .. values[2]
  redis.call('ZADD', changes, past_score(changes, math.floor(restored.at_ms / 1000), id), id)
end
discard(restored.garbage, restored.garbage_later)
redis.call('HSET', key, 'sequence', int(restored.base))
-- After its end, which is announced with the metadata of that time.
if restored.metadata == '' then redis.call('HDEL', key, 'metadata')
elseif restored.metadata ~= cjson.null then redis.call('HSET', key, 'metadata', restored.metadata) end
return old_status and 'mended' or 'made'
