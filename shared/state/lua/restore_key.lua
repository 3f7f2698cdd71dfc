-- Makes an API key what S3 says it is; one that is revoked in either place stays so.
-- ARGV: key id, digest, field and value pairs
local key = ns .. 'key:' .. ARGV[2]
for i = 3, #ARGV, 2 do redis.call('HSETNX', key, ARGV[i], ARGV[i + 1]) end
return redis.call('HSET', ns .. 'keys', ARGV[1], ARGV[2])
