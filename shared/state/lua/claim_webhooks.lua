-- Deliveries whose time has come. ARGV: the most in all, the most of one endpoint at once, lease in ms
-- Returns JSON: `granted`, and in `wait_ms` when there may be more (-1: nothing is known).
local most, each, granted = tonumber(ARGV[1]), tonumber(ARGV[2]), {}

-- The signing secrets, the newest first.
local function secrets_of(secret, old)
  local found = {secret}
  for _, one in ipairs(old and cjson.decode(old) or {}) do
    if one[2] > now then found[#found + 1] = one[1] end
  end
  return found
end

local due = redis.call('ZRANGEBYSCORE', ns .. 'webhooks-due', '-inf', int(now_ms), 'LIMIT', 0, 100)
for _, endpoint in ipairs(due) do
  if #granted >= most then break end
  local queue, claims = ns .. 'webhook-queue:' .. endpoint, ns .. 'webhook-claims:' .. endpoint
  for _, delivery in ipairs(redis.call('ZRANGEBYSCORE', claims, '-inf', int(now_ms))) do
    redis.call('ZREM', claims, delivery)
    redis.call('ZADD', queue, int(now_ms), delivery)
  end
  local hook = redis.call('HMGET', webhook_key(endpoint), 'url', 'secret', 'old_secrets', 'slow',
    'paused_until_ms', 'disabled_at')
  if hook[6] then
    for _, delivery in ipairs(redis.call('ZRANGE', queue, 0, 99)) do
      redis.call('ZREM', queue, delivery)
      fail_delivery(delivery)
    end
  elseif hook[1] and tonumber(hook[5] or 0) <= now_ms then
    local room = math.min(webhook_room(endpoint, each), most - #granted)
    local ready = room > 0
      and redis.call('ZRANGEBYSCORE', queue, '-inf', int(now_ms), 'LIMIT', 0, room) or {}
    for _, delivery in ipairs(ready) do
      redis.call('ZREM', queue, delivery)
      local key = delivery_key(delivery)
      local values = redis.call('HMGET', key, 'type', 'batch', 'sequence', 'created_at',
        'since_ms', 'tries')
      -- One that is not there any more has reached the end of its time.
      if values[1] then
        redis.call('ZADD', claims, int(now_ms + tonumber(ARGV[3])), delivery)
        granted[#granted + 1] = {endpoint, delivery, redis.call('HINCRBY', key, 'claims', 1),
          hook[1], secrets_of(hook[2], hook[3]), hook[4] or '0', unpack(values)}
      end
    end
  end
  schedule_webhook(endpoint, each)
end
local head = redis.call('ZRANGE', ns .. 'webhooks-due', 0, 0, 'WITHSCORES')
local wait = head[2] and math.max(0, tonumber(head[2]) - now_ms) or -1
-- An empty Lua table would become an object.
local list = #granted > 0 and cjson.encode(granted) or '[]'
return '{"granted":' .. list .. ',"wait_ms":' .. int(wait) .. '}'
