-- needs: webhook, delivery, webhook_schedule
-- Claims deliveries that are due. ARGV: max deliveries, max claims of one endpoint, lease in ms, how many
-- each tenant has under way (JSON). A tenant gets no more than it leaves free, as `may_take` of
-- shared/tenant_slots.py says.
-- Returns JSON: `granted`, and `wait_ms` until there may be more (-1 if nothing is known).
local max_deliveries, max_claims, lease_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local under_way = cjson.decode(ARGV[4])
-- How long an endpoint waits whose tenant has all that it may have, unless one of its own ends.
local CROWDED_MS = 1000
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

local function share_of(tenant)
  return math.ceil((max_deliveries - #granted - (under_way[tenant] or 0)) / 2)
end

-- Returns whether the tenant has no share left of what is still free.
local function claim(endpoint, hook)
  local tenant, before = hook[7], #granted
  local share = share_of(tenant)
  local limit = math.min(free_claims(endpoint, max_claims), share)
  if limit <= 0 then return share <= 0 end
  local queue = queue_key(endpoint)
  for _, delivery in ipairs(
    redis.call('ZRANGEBYSCORE', queue, '-inf', int(now_ms), 'LIMIT', 0, limit)) do
    redis.call('ZREM', queue, delivery)
    local key = delivery_key(delivery)
    local values = redis.call('HMGET', key, 'type', 'batch', 'sequence', 'created_at', 'since_ms',
      'tries')
    local traceparent = redis.call('HGET', key, 'traceparent')
    -- A delivery whose record is gone has reached the end of its time.
    if values[1] then
      redis.call('ZADD', claims_key(endpoint), int(now_ms + lease_ms), delivery)
      granted[#granted + 1] = {endpoint, delivery, redis.call('HINCRBY', key, 'claims', 1),
        hook[1], secrets_of(hook[2], hook[3]), hook[4] or '0', tenant,
        traceparent or '', unpack(values)}
    end
  end
  under_way[tenant] = (under_way[tenant] or 0) + #granted - before
  return #granted - before == share and #granted < max_deliveries
end

local due = redis.call('ZRANGEBYSCORE', ns .. 'webhooks-due', '-inf', int(now_ms), 'LIMIT', 0,
  MAX_CALL_ENTRIES)
for _, endpoint in ipairs(due) do
  if #granted >= max_deliveries then break end
  requeue_expired_claims(endpoint)
  local hook = redis.call('HMGET', webhook_key(endpoint), 'url', 'secret', 'old_secrets', 'slow',
    'paused_until_ms', 'disabled_at', 'tenant')
  local is_crowded = false
  if hook[6] then
    fail_queued(endpoint)
  elseif hook[1] and tonumber(hook[5] or 0) <= now_ms then
    is_crowded = claim(endpoint, hook)
  end
  schedule_webhook(endpoint, max_claims)
  if is_crowded then
    redis.call('ZADD', ns .. 'webhooks-due', 'XX', 'GT', int(now_ms + CROWDED_MS), endpoint)
  end
end
local head = redis.call('ZRANGE', ns .. 'webhooks-due', 0, 0, 'WITHSCORES')
local wait = head[2] and math.max(0, tonumber(head[2]) - now_ms) or -1
-- Lua would encode an empty table as an object.
local list = #granted > 0 and cjson.encode(granted) or '[]'
return '{"granted":' .. list .. ',"wait_ms":' .. int(wait) .. '}'
