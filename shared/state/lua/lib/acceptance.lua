-- needs: away, event, file, pack

-- Writes the reply to whoever sent the batch, if `reply_to` says who. In the same step as the batch:
-- no crash can create a batch whose sender never hears of it.
local function write_reply(id, reply_to, is_duplicate)
  if not reply_to then return end
  local values = redis.call('HMGET', batch_key(id), 'status', 'created_at', 'expires_at', 'warnings')
  -- A new batch's plan, which has them, is written after the reply.
  local warnings = values[4] or reply_to.warnings
  redis.call('XADD', ns .. 'outbox:replies', '*', 'to', reply_to.to, 'message_id', reply_to.message_id,
    'correlation_id', reply_to.correlation_id, 'body', cjson.encode({
      status = 'accepted', duplicate = is_duplicate, batch = {id = id, object = 'batch',
        status = values[1], created_at = tonumber(values[2]), expires_at = tonumber(values[3]),
        warnings = warnings and cjson.decode(warnings)}}))
end

-- Creates the batch as `validating`, with its events, once. Empty `fields` only meet a batch that
-- exists. `input_file`, `submission` and `reply_to` may be nil.
-- Returns 'accepted', 'duplicate', 'conflict', or 'away' for a batch that has to come back first.
local function accept_batch(id, fingerprint, fields, input_file, submission, reply_to)
  local key = batch_key(id)
  local seen = redis.call('HGET', key, 'fingerprint')
  if seen then
    if seen ~= fingerprint then return 'conflict' end
    write_reply(id, reply_to, true)
    return 'duplicate'
  end
  if is_away(id) then return 'away' end
  if #fields == 0 then error('There is no batch ' .. id .. ' to meet.') end
  redis.call('HSET', key, 'status', 'validating', 'fingerprint', fingerprint, unpack(fields))
  if input_file then write_file(input_file) end
  local values = redis.call('HMGET', key, 'tenant', 'input_file_id', 'expires_at')
  keep_pack(id, input_file)
  local dataset = redis.call('HGET', key, 'dataset')
  if dataset then redis.call('ZREM', ns .. 'garbage', dataset) end
  redis.call('ZADD', ns .. 'batches:' .. values[1], int(now_us), id)
  redis.call('ZADD', ns .. 'status:validating', now, id)
  redis.call('ZADD', ns .. 'deadlines', values[3], id)
  redis.call('SADD', ns .. 'readers:' .. values[2], id)
  if submission then redis.call('XADD', ns .. 'outbox:submissions', '*', 'message', submission) end
  write_reply(id, reply_to, false)
  -- The manifest gives this event its number and time, so a rebuild from S3 makes the same event.
  announce(id, 'batch.accepted', pin_of('1', redis.call('HGET', key, 'created_at') .. '000'))
  ring('dispatcher')
  return 'accepted'
end
