-- needs: webhook
-- Deletes an endpoint. ARGV: tenant, endpoint. Returns 1, or 0 when there is no such endpoint.
local id = ARGV[2]
if redis.call('HGET', webhook_key(id), 'tenant') ~= ARGV[1] then return 0 end
-- The deliveries themselves expire.
redis.call('DEL', webhook_key(id), queue_key(id), claims_key(id),
  ns .. 'webhook-deliveries:' .. id, ns .. 'webhook-testing:' .. id)
redis.call('ZREM', ns .. 'webhooks:' .. ARGV[1], id)
redis.call('ZREM', ns .. 'webhooks-due', id)
return 1
