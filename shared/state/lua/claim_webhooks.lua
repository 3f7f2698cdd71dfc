-- needs: webhook, delivery, webhook_schedule
-- Claims deliveries that are due. ARGV: max deliveries, max claims of one endpoint, lease in ms
-- Returns JSON: `granted`, and `wait_ms` until there may be more (-1 if nothing is known).
local max_deliveries, max_claims, lease_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local granted = {}

-- The signing secrets, the newest first.
local function secrets_of(secret, old)
  local found = {secret}
  for _, one in ipairs(old and cjson.decode(old) or {}) do
    if one[2] > now then found[#found + 1] = one[1] end
  end
  return found
end

local function requeue_expired_claims(endpoint)
  for _, delivery in ipairs(redis.call('ZRANGEBYSCORE', claims_key(endpoint), '-inf', int(now_ms))) do
    redis.call('ZREM', claims_key(endpoint), delivery)
    redis.call('ZADD', queue_key(endpoint), int(now_ms), delivery)
  end
end

local function fail_queued(endpoint)
  for _, delivery in ipairs(redis.call('ZRANGE', queue_key(endpoint), 0, MAX_CALL_ENTRIES - 1)) do
    redis.call('ZREM', queue_key(endpoint), delivery)
    finish_delivery(delivery, 'failed')
  end
end

local function claim(endpoint, hook)
  local limit = math.min(free_claims(endpoint, max_claims), max_deliveries - #granted)
  if limit <= 0 then return end
  local queue = queue_key(endpoint)
  for _, delivery in ipairs(
    redis.call('ZRANGEBYSCORE', queue, '-inf', int(now_ms), 'LIMIT', 0, limit)) do
    redis.call('ZREM', queue, delivery)
    local key = delivery_key(delivery)
    local values = redis.call('HMGET', key, 'type', 'batch', 'sequence', 'created_at', 'since_ms',
      'tries')
    -- A delivery whose record is gone has reached the end of its time.
    if values[1] then
      redis.call('ZADD', claims_key(endpoint), int(now_ms + lease_ms), delivery)
      granted[#granted + 1] = {endpoint, delivery, redis.call('HINCRBY', key, 'claims', 1),
        hook[1], secrets_of(hook[2], hook[3]), hook[4] or '0',
        redis.call('HGET', batch_key(values[2]), 'traceparent') or '', unpack(values)}
    end
  end
end

local due = redis.call('ZRANGEBYSCORE', ns .. 'webhooks-due', '-inf', int(now_ms), 'LIMIT', 0,
  MAX_CALL_ENTRIES)
for _, endpoint in ipairs(due) do
  if #granted >= max_deliveries then break end
  requeue_expired_claims(endpoint)
  local hook = redis.call('HMGET', webhook_key(endpoint), 'url', 'secret', 'old_secrets', 'slow',
    'paused_until_ms', 'disabled_at')
  if hook[6] then
    fail_queued(endpoint)
  elseif hook[1] and tonumber(hook[5] or 0) <= now_ms then
    claim(endpoint, hook)
  end
  schedule_webhook(endpoint, max_claims)
end
local head = redis.call('ZRANGE', ns .. 'webhooks-due', 0, 0, 'WITHSCORES')
local wait = head[2] and math.max(0, tonumber(head[2]) - now_ms) or -1
-- Lua would encode an empty table as an object.
local list = #granted > 0 and cjson.encode(granted) or '[]'
return '{"granted":' .. list .. ',"wait_ms":' .. int(wait) .. '}'
