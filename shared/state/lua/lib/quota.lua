-- A tenant's queue: the requests, and the prompt tokens of each model, that its running batches hold.
-- A request for several sequences counts as many times; batches of older versions do not say.

local function queue_size(tenant, model)
  local values = redis.call('HMGET', ns .. 'enqueued:' .. tenant, 'requests', 'tokens:' .. model)
  return tonumber(values[1] or 0), tonumber(values[2] or 0)
end

-- Counts the batch in its tenant's queue (sign 1) or out of it (sign -1). A batch of several models
-- has prompt tokens for each.
local function count_in_queue(id, sign)
  local values = redis.call('HMGET', batch_key(id), 'tenant', 'queued_model', 'total', 'prompt_tokens',
    'queued_requests')
  if not values[2] then return end
  local queue = ns .. 'enqueued:' .. values[1]
  local shares, tokens = {requests = values[5] or values[3]}, words(values[4])
  for i, model in ipairs(words(values[2])) do shares['tokens:' .. model] = tokens[i] or 0 end
  for field, share in pairs(shares) do
    -- Redis does not know the number -0.
    if redis.call('HINCRBY', queue, field, int(sign * tonumber(share or 0))) <= 0 then
      redis.call('HDEL', queue, field)
    end
  end
end

-- Which quota of its tenant a batch would exceed if it started with these fields, and what is used of
-- it: 'requests', or 'tokens' with the model's position (from 1); nil if none. A limit of 0 means no
-- limit.
local function exceeded_quota(id, fields, max_requests, max_tokens)
  local new = {}
  for i = 1, #fields, 2 do new[fields[i]] = fields[i + 1] end
  local tenant = redis.call('HGET', batch_key(id), 'tenant')
  local models, shares, limits = words(new.queued_model), words(new.prompt_tokens), words(max_tokens)
  for i = 1, math.max(#models, 1) do
    local requests, tokens = queue_size(tenant, models[i] or '')
    if i == 1 and max_requests > 0 and requests + tonumber(new.queued_requests or new.total or 0) > max_requests then
      return 'requests ' .. int(requests)
    end
    local limit = tonumber(limits[i] or 0)
    if limit > 0 and tokens + tonumber(shares[i] or 0) > limit then
      return 'tokens ' .. int(tokens) .. ' ' .. i
    end
  end
end
