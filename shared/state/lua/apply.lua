-- ARGV: batch id, event, most enqueued requests, most enqueued prompt tokens (0 for any number),
-- field and value pairs
-- Returns what `transition` does, or 'requests' or 'tokens' for the queue that has no room for the batch.
local id, event, fields, told = ARGV[1], ARGV[2], {}, {}
for i = 5, #ARGV, 2 do
  fields[#fields + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i + 1]
  told[ARGV[i]] = ARGV[i + 1]
end
local is_start = event == 'input_accepted'
if is_start and redis.call('HGET', batch_key(id), 'status') == 'validating' then
  local tenant, most = redis.call('HGET', batch_key(id), 'tenant'), {tonumber(ARGV[3]), tonumber(ARGV[4])}
  local requests, tokens = enqueued(tenant, told.queued_model or '')
  if most[1] > 0 and requests + tonumber(told.total or 0) > most[1] then return 'requests' end
  if most[2] > 0 and tokens + tonumber(told.prompt_tokens or 0) > most[2] then return 'tokens' end
end
local outcome = transition(id, event, fields)
if outcome == 'ok' and is_start then
  local plan = redis.call('HGET', batch_key(id), 'plan')
  redis.call('PERSIST', ns .. 'plan:' .. id .. ':' .. plan)
  redis.call('PERSIST', ns .. 'pending:' .. id .. ':' .. plan)
end
return outcome
