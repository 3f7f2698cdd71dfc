-- needs: webhook, delivery, webhook_schedule
-- Records an attempt. ARGV: endpoint, delivery, claim, outcome, attempt (JSON), wait before the next
-- attempt in ms, pause for the endpoint in ms, max claims of one endpoint, the URL that was called
-- Returns 1, or 0 when the claim belongs to another process by now.
local endpoint, delivery, claim, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local wait_ms, pause_ms, max_claims = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local hook, key = webhook_key(endpoint), delivery_key(delivery)
-- Another URL is another receiver, which has not said what this one has.
local is_of_before = redis.call('HGET', hook, 'url') ~= ARGV[9]
if is_of_before then
  pause_ms = 0
  if outcome == 'gone' then outcome = 'retry' end
end
if redis.call('HGET', key, 'claims') ~= claim
  or redis.call('ZREM', claims_key(endpoint), delivery) == 0 then return 0 end

local text = redis.call('HGET', key, 'attempts')
local attempts = text and cjson.decode(text) or {}
attempts[#attempts + 1] = cjson.decode(ARGV[5])
while #attempts > MAX_ATTEMPTS do table.remove(attempts, 1) end
redis.call('HSET', key, 'attempts', cjson.encode(attempts))

if outcome == 'gone' then redis.call('HSET', hook, 'disabled_at', now) end
if outcome == 'delivered' then
  if not is_of_before then redis.call('HDEL', hook, 'slow', 'paused_until_ms') end
  finish_delivery(delivery, 'delivered')
elseif outcome == 'retry' and redis.call('HEXISTS', hook, 'disabled_at') == 0 then
  local next_at_ms = int(now_ms + wait_ms)
  redis.call('HINCRBY', key, 'tries', 1)
  redis.call('HSET', key, 'next_at_ms', next_at_ms)
  redis.call('ZADD', queue_key(endpoint), next_at_ms, delivery)
else
  finish_delivery(delivery, 'failed')
end

if pause_ms > 0 then
  redis.call('HINCRBY', hook, 'slow', 1)
  redis.call('HSET', hook, 'paused_until_ms', int(now_ms + pause_ms))
end
schedule_webhook(endpoint, max_claims)
ring('webhooks')
return 1
