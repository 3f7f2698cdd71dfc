-- needs: webhook

-- How many more deliveries to the endpoint may be claimed. An endpoint that asked to slow down gets one
-- at a time.
local function free_claims(endpoint, max_claims)
  local slow = redis.call('HGET', webhook_key(endpoint), 'slow')
  return (slow and 1 or max_claims) - redis.call('ZCARD', claims_key(endpoint))
end

-- Sets when to look at the endpoint again: at its next delivery, if one more may be claimed, and in
-- any case when a claim runs out.
local function schedule_webhook(endpoint, max_claims)
  local head = redis.call('ZRANGE', queue_key(endpoint), 0, 0, 'WITHSCORES')
  local lease = redis.call('ZRANGE', claims_key(endpoint), 0, 0, 'WITHSCORES')
  local at
  if head[2] and free_claims(endpoint, max_claims) > 0 then
    local paused = redis.call('HGET', webhook_key(endpoint), 'paused_until_ms')
    -- Not in the past, so that endpoints take turns however long their queues are.
    at = math.max(tonumber(head[2]), tonumber(paused or 0), now_ms)
  end
  if lease[2] and (not at or tonumber(lease[2]) < at) then at = tonumber(lease[2]) end
  if at then
    redis.call('ZADD', ns .. 'webhooks-due', int(at), endpoint)
  else
    redis.call('ZREM', ns .. 'webhooks-due', endpoint)
  end
end
