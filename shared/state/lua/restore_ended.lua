-- Lets a batch have ended as its commit in S3 says.
-- ARGV: batch id, and as JSON: `record` and `fields` (field and value pairs before and of its end),
-- `event`, `sequence` and `at_ms`, `files`, `garbage`, `garbage_later`, `input_file`,
-- `base` (more than any number that an event has had), `silent` (whether nobody is to be told),
-- `metadata` (what a client made of it since; null for nothing)
-- Returns 'made', 'mended' or 'ended': what has ended stays so.
local id, told, key = ARGV[1], cjson.decode(ARGV[2]), batch_key(ARGV[1])
local old = redis.call('HGET', key, 'status')
if old and FINAL[old] then return 'ended' end
if old then leave(id) end
redis.call('DEL', key)
redis.call('HSET', key, unpack(told.record))
local values = redis.call('HMGET', key, 'status', 'tenant', 'created_at')
keep_pack(id, told.input_file ~= '' and told.input_file or nil)
-- Its end takes it out again.
if values[1] == 'in_progress' then enqueue(id, 1) end
local index = ns .. 'batches:' .. values[2]
redis.call('ZADD', index, 'NX', past_score(index, tonumber(values[3]), id), id)
if told.input_file ~= '' then write_file(told.input_file, true) end
for _, file in ipairs(told.files) do write_file(file, true) end
local pin = pin_of(told.sequence, told.at_ms)
pin.silent = told.silent
local outcome = transition(id, told.event, told.fields, pin)
if outcome ~= 'ok' then error('a commit that contradicts itself: ' .. id .. ' ' .. outcome) end
if told.silent then
  local changes = ns .. 'changes:' .. values[2]
  redis.call('ZADD', changes, past_score(changes, math.floor(told.at_ms / 1000), id), id)
end
discard(told.garbage, told.garbage_later)
redis.call('HSET', key, 'sequence', int(told.base))
-- Its end is told as it was.
if told.metadata == '' then redis.call('HDEL', key, 'metadata')
elseif told.metadata ~= cjson.null then redis.call('HSET', key, 'metadata', told.metadata) end
return old and 'mended' or 'made'
