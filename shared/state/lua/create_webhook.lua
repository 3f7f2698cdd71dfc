-- Makes an endpoint once. ARGV: tenant, endpoint, the most a tenant may have, field and value pairs
-- Returns 1, or 0 when there are that many already.
local key, index = webhook_key(ARGV[2]), ns .. 'webhooks:' .. ARGV[1]
if redis.call('EXISTS', key) == 1 then return 1 end
if redis.call('ZCARD', index) >= tonumber(ARGV[3]) then return 0 end
redis.call('HSET', key, 'tenant', ARGV[1], 'created_at', now, 'updated_at', now, unpack(ARGV, 4))
local score = string.format('%.0f', tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
redis.call('ZADD', index, score, ARGV[2])
return 1
