-- needs: webhook

local function delivery_key(id) return ns .. 'webhook-delivery:' .. id end

local function queue_delivery(endpoint, delivery)
  redis.call('ZADD', queue_key(endpoint), int(now_ms), delivery)
  redis.call('ZADD', ns .. 'webhooks-due', 'LT', int(now_ms), endpoint)
  redis.call('EXPIRE', delivery_key(delivery), DELIVERY_SECONDS)
  ring('webhooks')
end

-- Ends a delivery as 'delivered' or 'failed'.
local function finish_delivery(delivery, state)
  redis.call('HSET', delivery_key(delivery), 'state', state)
  redis.call('EXPIRE', delivery_key(delivery), FINISHED_DELIVERY_SECONDS)
end
