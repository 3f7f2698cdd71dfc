-- Adds an API key. A key that exists is not changed, so a revoked one stays revoked.
-- ARGV: key id, digest, then field and value pairs
local key = ns .. 'key:' .. ARGV[2]
for i = 3, #ARGV, 2 do redis.call('HSETNX', key, ARGV[i], ARGV[i + 1]) end
redis.call('HSETNX', key, 'created_at', now)
redis.call('HSET', ns .. 'keys', ARGV[1], ARGV[2])
return 1
