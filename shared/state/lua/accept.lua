-- Makes the batch as `validating`, with its events, once.
-- ARGV: batch id, fingerprint, fields (JSON list), input file (JSON or ''), submission (JSON or ''),
-- reply (JSON object, or '')
-- Returns 'accepted', 'duplicate' or 'conflict'.
local id = ARGV[1]
local key = batch_key(id)
-- With the batch in one step: no crash can make a batch whose sender is never told.
local function reply(is_duplicate)
  if ARGV[6] == '' then return end
  local told = cjson.decode(ARGV[6])
  local values = redis.call('HMGET', key, 'status', 'created_at', 'expires_at')
  redis.call('XADD', ns .. 'outbox:replies', '*', 'to', told.to, 'message_id', told.message_id,
    'correlation_id', told.correlation_id, 'body', cjson.encode({
      status = 'accepted', duplicate = is_duplicate, batch = {id = id, object = 'batch',
        status = values[1], created_at = tonumber(values[2]), expires_at = tonumber(values[3])}}))
end
local seen = redis.call('HGET', key, 'fingerprint')
if seen then
  if seen ~= ARGV[2] then return 'conflict' end
  reply(true)
  return 'duplicate'
end
local fields = cjson.decode(ARGV[3])
redis.call('HSET', key, 'status', 'validating', 'fingerprint', ARGV[2], unpack(fields))
if ARGV[4] ~= '' then write_file(cjson.decode(ARGV[4])) end
local values = redis.call('HMGET', key, 'tenant', 'input_file_id', 'expires_at')
local score = string.format('%.0f', tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
redis.call('ZADD', ns .. 'batches:' .. values[1], score, id)
redis.call('ZADD', ns .. 'status:validating', now, id)
redis.call('ZADD', ns .. 'deadlines', values[3], id)
redis.call('SADD', ns .. 'readers:' .. values[2], id)
if ARGV[5] ~= '' then
  redis.call('XADD', ns .. 'outbox:submissions', '*', 'message', ARGV[5])
end
reply(false)
-- As its manifest says: made again from that, it is the same event.
announce(id, 'batch.accepted', pin_of('1', redis.call('HGET', key, 'created_at') .. '000'))
ring('dispatcher')
return 'accepted'
