-- Removes every trace of a pipeline. ARGV: pipeline
-- Returns 1.
local key = ns .. 'pipeline:' .. ARGV[1]
local tenant = redis.call('HGET', key, 'tenant')
if tenant then redis.call('ZREM', ns .. 'pipelines:' .. tenant, ARGV[1]) end
redis.call('ZREM', ns .. 'pipelines-live', ARGV[1])
redis.call('ZREM', ns .. 'pipelines-ended', ARGV[1])
redis.call('DEL', key)
return 1
