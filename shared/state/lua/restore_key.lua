-- Writes an API key as S3 knows it. A key that is revoked in either place stays revoked. When it
-- expires and what it may be used for is as S3 says, where changes are written first.
-- ARGV: key id, digest, field and value pairs. Returns 1, or 0 when it exists.
local key = ns .. 'key:' .. ARGV[2]
redis.call('HDEL', key, 'expires_at', 'scopes')
for i = 3, #ARGV, 2 do redis.call('HSETNX', key, ARGV[i], ARGV[i + 1]) end
return redis.call('HSET', ns .. 'keys', ARGV[1], ARGV[2])
