-- needs: webhook, delivery

-- Writes one delivery for each of the tenant's webhook endpoints that wants this event of a batch or a
-- pipeline. The same end always gives the same delivery ids.
local function notify_webhooks(tenant, id, kind, at, sequence, traceparent)
  -- A rebuild may create what ended long ago; its deliveries would have been given up by now.
  if at < now - DELIVERY_WINDOW_SECONDS then return end
  for _, endpoint in ipairs(redis.call('ZRANGE', ns .. 'webhooks:' .. tenant, 0, -1)) do
    local hook = redis.call('HMGET', webhook_key(endpoint), 'event_types', 'disabled_at')
    if hook[1] and not hook[2] and string.find(',' .. hook[1] .. ',', ',' .. kind .. ',', 1, true) then
      local delivery = 'wh_' .. string.sub(redis.sha1hex(endpoint .. ':' .. id .. ':' .. kind), 1, 32)
      local index = ns .. 'webhook-deliveries:' .. endpoint
      redis.call('HSET', delivery_key(delivery), 'endpoint', endpoint, 'type', kind, 'batch', id,
        'sequence', sequence, 'created_at', int(at), 'state', 'pending',
        'since_ms', int(now_ms), 'next_at_ms', int(now_ms), 'tries', '0', 'claims', '0',
        'traceparent', traceparent)
      redis.call('ZADD', index, int(now_ms), delivery)
      redis.call('ZREMRANGEBYSCORE', index, '-inf', int(now_ms - 1000 * LISTED_DELIVERY_SECONDS))
      redis.call('EXPIRE', index, LISTED_DELIVERY_SECONDS)
      queue_delivery(endpoint, delivery)
    end
  end
end
