-- Makes a batch that has not ended what S3 says it is; its slices and parts are there already.
-- ARGV: batch id, and as JSON: `status`, `stages` (each with field and value pairs and, if it is one, its
-- event, number and time), `last` (the event of the status, or ''), `base` (more than any number that an event has had), `input_file`, `left` and `pending` (by
-- lane, how many slices)
-- Returns 'made', 'mended' or 'ended': what has ended stays so.
local id, told, key = ARGV[1], cjson.decode(ARGV[2]), batch_key(ARGV[1])
local old = redis.call('HMGET', key, 'status', 'sequence')
if old[1] and FINAL[old[1]] then return 'ended' end
if old[1] then leave(id) end
redis.call('DEL', key)
local known = tonumber(old[2] or 0)
for _, stage in ipairs(told.stages) do
  redis.call('HSET', key, unpack(stage.fields))
  if stage.kind ~= '' and stage.sequence > known then
    announce(id, stage.kind, pin_of(stage.sequence, stage.at_ms))
  end
end
redis.call('HSET', key, 'sequence', int(told.base))
keep_pack(id, told.input_file ~= '' and told.input_file or nil)
local values = redis.call('HMGET', key, 'tenant', 'input_file_id', 'expires_at', 'lane', 'plan', 'paused',
  'created_at')
local index = ns .. 'batches:' .. values[1]
redis.call('ZADD', index, 'NX', past_score(index, tonumber(values[7]), id), id)
redis.call('ZADD', ns .. 'status:' .. told.status, now, id)
redis.call('ZADD', ns .. 'deadlines', values[3], id)
redis.call('SADD', ns .. 'readers:' .. values[2], id)
if told.input_file ~= '' then write_file(told.input_file, true) end
if values[5] then
  local lanes = words(values[4])
  redis.call('PERSIST', ns .. 'plan:' .. id .. ':' .. values[5])
  for _, lane in ipairs(lanes) do
    redis.call('PERSIST', pending_key(id, values[5], lanes, lane))
    redis.call('SADD', ns .. 'lanes', lane)
    if told.status == 'in_progress' and not values[6] and told.left[lane] > 0 then
      redis.call('ZADD', lane_key(lane, 'active'), values[7], id)
      if told.pending[lane] > 0 then wait(lane, id) end
    end
  end
  if told.status == 'in_progress' then enqueue(id, 1) end
end
if told.last ~= '' and old[1] ~= told.status then announce(id, told.last) end
ring('dispatcher')
return old[1] and 'mended' or 'made'
