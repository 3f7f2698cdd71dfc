-- needs: webhook
-- Creates an endpoint, once. ARGV: tenant, endpoint, max endpoints of a tenant, field and value pairs
-- Returns 1, or 0 when the tenant has the maximum already.
local key, index = webhook_key(ARGV[2]), ns .. 'webhooks:' .. ARGV[1]
if redis.call('EXISTS', key) == 1 then return 1 end
if redis.call('ZCARD', index) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', key, 'tenant', ARGV[1], 'created_at', now, 'updated_at', now, unpack(ARGV, 4))
redis.call('ZADD', index, int(now_us), ARGV[2])
return 1
