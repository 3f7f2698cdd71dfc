-- needs: notify
-- Writes fields of a pipeline's record. ARGV: pipeline, tenant, when it was created, when it ended ('' if
-- it has not), what its last event says ('' without one), then field and value pairs
-- Returns 1. One that has ended stays so, and its end is told once.
local id, tenant, created_at, ended_at, told = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = ns .. 'pipeline:' .. id

-- Announces the end, unless it is so old that nobody waits for it any more.
local function tell_end()
  local at = tonumber(ended_at)
  if told == '' or at < now - EVENT_HISTORY_SECONDS then return end
  local status = redis.call('HGET', key, 'status')
  -- Its only event, so it has the same number each time.
  redis.call('XADD', ns .. 'outbox:events', '*', 'type', 'pipeline.' .. status, 'sequence', 1,
    'at_ms', int(at * 1000), 'pipeline', told,
    'snapshot', cjson.encode({id = id, tenant = tenant, status = status}))
  notify_webhooks(tenant, id, 'pipeline.' .. status, at, 1, '')
end

local is_new_end = ended_at ~= '' and redis.call('HEXISTS', key, 'ended_at') == 0
redis.call('HSET', key, 'tenant', tenant, 'created_at', created_at, unpack(ARGV, 6))
if is_new_end then tell_end() end
redis.call('ZADD', ns .. 'pipelines:' .. tenant, 'NX', created_at, id)
if ended_at ~= '' then
  redis.call('HSET', key, 'ended_at', ended_at)
  redis.call('ZREM', ns .. 'pipelines-live', id)
  redis.call('ZADD', ns .. 'pipelines-ended', ended_at, id)
elseif redis.call('HEXISTS', key, 'ended_at') == 0 then
  redis.call('ZADD', ns .. 'pipelines-live', 'NX', created_at, id)
end
ring('dispatcher')
return 1
