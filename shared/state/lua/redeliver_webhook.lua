-- needs: webhook, delivery
-- Starts a delivery again. One that is being made right now is left alone.
-- ARGV: tenant, endpoint, delivery. Returns 'ok', 'no endpoint', 'no delivery' or 'disabled'.
local endpoint, delivery = ARGV[2], ARGV[3]
local values = redis.call('HMGET', webhook_key(endpoint), 'tenant', 'disabled_at')
if values[1] ~= ARGV[1] then return 'no endpoint' end
if redis.call('HGET', delivery_key(delivery), 'endpoint') ~= endpoint then return 'no delivery' end
if values[2] then return 'disabled' end
if not redis.call('ZSCORE', claims_key(endpoint), delivery) then
  redis.call('HSET', delivery_key(delivery), 'state', 'pending', 'since_ms', int(now_ms),
    'next_at_ms', int(now_ms), 'tries', '0')
  queue_delivery(endpoint, delivery)
end
return 'ok'
