-- needs: webhook
-- Changes an endpoint, and enables a disabled one. ARGV: tenant, endpoint, field and value pairs
-- Returns 1, or 0 when there is no such endpoint.
local key = webhook_key(ARGV[2])
if redis.call('HGET', key, 'tenant') ~= ARGV[1] then return 0 end
local is_changed = redis.call('HDEL', key, 'disabled_at') == 1
for i = 3, #ARGV, 2 do
  if redis.call('HGET', key, ARGV[i]) ~= ARGV[i + 1] then
    redis.call('HSET', key, ARGV[i], ARGV[i + 1])
    is_changed = true
  end
end
if is_changed then
  redis.call('HSET', key, 'updated_at', now)
  -- What the old receiver asked for does not bind the new one.
  redis.call('HDEL', key, 'slow', 'paused_until_ms')
  redis.call('ZADD', ns .. 'webhooks-due', 'XX', 'LT', int(now_ms), ARGV[2])
  ring('webhooks')
end
return 1
