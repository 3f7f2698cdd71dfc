-- Records an attempt. ARGV: endpoint, delivery, claim, outcome, attempt (JSON), wait for the next one
-- in ms, pause for the endpoint in ms, the most of one endpoint at once
-- Returns 1, or 0 when the claim is another's by now.
local endpoint, delivery, outcome = ARGV[1], ARGV[2], ARGV[4]
local hook, key = webhook_key(endpoint), delivery_key(delivery)
local claims = ns .. 'webhook-claims:' .. endpoint
if redis.call('HGET', key, 'claims') ~= ARGV[3] or redis.call('ZREM', claims, delivery) == 0 then
  return 0
end
local text = redis.call('HGET', key, 'attempts')
local attempts = text and cjson.decode(text) or {}
attempts[#attempts + 1] = cjson.decode(ARGV[5])
while #attempts > 30 do table.remove(attempts, 1) end
redis.call('HSET', key, 'attempts', cjson.encode(attempts))
if outcome == 'gone' then redis.call('HSET', hook, 'disabled_at', now) end
if outcome == 'delivered' then
  redis.call('HDEL', hook, 'slow', 'paused_until_ms')
  redis.call('HSET', key, 'state', 'delivered')
  redis.call('EXPIRE', key, FINISHED_DELIVERY_SECONDS)
elseif outcome == 'retry' and redis.call('HEXISTS', hook, 'disabled_at') == 0 then
  redis.call('HINCRBY', key, 'tries', 1)
  local next_at_ms = int(now_ms + tonumber(ARGV[6]))
  redis.call('HSET', key, 'next_at_ms', next_at_ms)
  redis.call('ZADD', ns .. 'webhook-queue:' .. endpoint, next_at_ms, delivery)
else
  fail_delivery(delivery)
end
if tonumber(ARGV[7]) > 0 then
  redis.call('HINCRBY', hook, 'slow', 1)
  redis.call('HSET', hook, 'paused_until_ms', int(now_ms + tonumber(ARGV[7])))
end
schedule_webhook(endpoint, tonumber(ARGV[8]))
ring('webhooks')
return 1
