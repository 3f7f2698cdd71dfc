-- needs: webhook
-- Replaces an endpoint's signing secret.
-- ARGV: tenant, endpoint, new secret, its hint, seconds for which old secrets stay valid (0: they do not)
-- Returns 1, or 0 when there is no such endpoint. A repeat changes nothing.
local key = webhook_key(ARGV[2])
local values = redis.call('HMGET', key, 'tenant', 'secret', 'old_secrets')
if values[1] ~= ARGV[1] then return 0 end
if values[2] == ARGV[3] then return 1 end
if tonumber(ARGV[5]) > 0 then
  local kept = {{values[2], now + tonumber(ARGV[5])}}
  for _, old in ipairs(values[3] and cjson.decode(values[3]) or {}) do
    if old[2] > now and #kept < MAX_OLD_SECRETS then kept[#kept + 1] = old end
  end
  redis.call('HSET', key, 'old_secrets', cjson.encode(kept))
else
  redis.call('HDEL', key, 'old_secrets')
end
redis.call('HSET', key, 'secret', ARGV[3], 'hint', ARGV[4], 'updated_at', now)
return 1
