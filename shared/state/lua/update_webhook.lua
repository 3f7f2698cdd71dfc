-- ARGV: tenant, endpoint, field and value pairs. Returns 1, or 0 when there is no such endpoint.
local key = webhook_key(ARGV[2])
if redis.call('HGET', key, 'tenant') ~= ARGV[1] then return 0 end
local changed = redis.call('HDEL', key, 'disabled_at') == 1
for i = 3, #ARGV, 2 do
  if redis.call('HGET', key, ARGV[i]) ~= ARGV[i + 1] then
    redis.call('HSET', key, ARGV[i], ARGV[i + 1])
    changed = true
  end
end
if changed then
  redis.call('HSET', key, 'updated_at', now)
  -- What the old receiver has asked for is not the new one's wish.
  redis.call('HDEL', key, 'slow', 'paused_until_ms')
end
return 1
