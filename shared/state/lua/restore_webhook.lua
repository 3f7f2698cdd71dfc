-- needs: webhook, scores
-- Writes a webhook endpoint as S3 knows it. ARGV: tenant, endpoint, field and value pairs
-- Returns 1, or 0 when it existed.
local key, index = webhook_key(ARGV[2]), ns .. 'webhooks:' .. ARGV[1]
local is_new = 1 - redis.call('EXISTS', key)
redis.call('HDEL', key, 'old_secrets')
redis.call('HSET', key, unpack(ARGV, 3))
local created_at = tonumber(redis.call('HGET', key, 'created_at'))
redis.call('ZADD', index, 'NX', past_score(index, created_at, ARGV[2]), ARGV[2])
return is_new
