-- ARGV: batch id, event, most enqueued requests, most enqueued prompt tokens of each of the batch's
-- models (0 for any number), number and time of its event ('' for the next and now), field and value
-- pairs
-- Returns what `transition` does, or 'requests', or 'tokens' with the model's place (from 1), for the
-- queue that has no room for the batch.
local id, event, fields, told = ARGV[1], ARGV[2], {}, {}
for i = 7, #ARGV, 2 do
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
  told[ARGV[i]] = ARGV[i + 1]
end
local is_start = event == 'input_accepted'
if is_start and redis.call('HGET', batch_key(id), 'status') == 'validating' then
  local tenant, most = redis.call('HGET', batch_key(id), 'tenant'), tonumber(ARGV[3])
  local models, limits, shares = words(told.queued_model), words(ARGV[4]), words(told.prompt_tokens)
  for i = 1, math.max(#models, 1) do
    local requests, tokens = enqueued(tenant, models[i] or '')
    if i == 1 and most > 0 and requests + tonumber(told.total or 0) > most then return 'requests' end
    local limit = tonumber(limits[i] or 0)
    if limit > 0 and tokens + tonumber(shares[i] or 0) > limit then return 'tokens ' .. i end
  end
end
local outcome = transition(id, event, fields, pin_of(ARGV[5], ARGV[6]))
if outcome == 'ok' and is_start then
  local values = redis.call('HMGET', batch_key(id), 'plan', 'lane')
  redis.call('PERSIST', ns .. 'plan:' .. id .. ':' .. values[1])
  local lanes = words(values[2])
  for _, lane in ipairs(lanes) do redis.call('PERSIST', pending_key(id, values[1], lanes, lane)) end
end
return outcome
