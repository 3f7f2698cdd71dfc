-- Revokes an API key. ARGV: key id, when (Unix seconds)
-- Returns 1, or 0 when there is no such key or it is revoked already.
local digest = redis.call('HGET', ns .. 'keys', ARGV[1])
if not digest then return 0 end
return redis.call('HSETNX', ns .. 'key:' .. digest, 'revoked_at', ARGV[2])
