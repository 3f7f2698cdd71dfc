-- Writes fields of a pipeline's record. ARGV: pipeline, tenant, when it was created, when it ended ('' if
-- it has not), then field and value pairs
-- Returns 1. One that has ended stays so.
local id, tenant, created_at, ended_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key = ns .. 'pipeline:' .. id
redis.call('HSET', key, 'tenant', tenant, 'created_at', created_at, unpack(ARGV, 5))
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
