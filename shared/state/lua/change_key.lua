-- Changes when an API key expires and what it may be used for.
-- ARGV: key id, Unix seconds ('' for never), scopes (separated by spaces). Returns 1, or 0 if there is
-- no such key.
local digest = redis.call('HGET', ns .. 'keys', ARGV[1])
if not digest then return 0 end
local key = ns .. 'key:' .. digest
if ARGV[2] == '' then redis.call('HDEL', key, 'expires_at')
else redis.call('HSET', key, 'expires_at', ARGV[2]) end
redis.call('HSET', key, 'scopes', ARGV[3])
return 1
