-- needs: event, quota, slice, transition
-- Applies an event to a batch.
-- ARGV: batch id, event, max enqueued requests, max enqueued prompt tokens of each of the batch's
-- models (0 for no limit), number and time of its event ('' for the next number and now), field and
-- value pairs
-- Returns what `transition` does; or the quota that the batch would exceed, as `exceeded_quota` does.
local id, event, fields = ARGV[1], ARGV[2], {}
for i = 7, #ARGV do fields[#fields + 1] = ARGV[i] end
local is_start = event == 'input_accepted'
if is_start and redis.call('HGET', batch_key(id), 'status') == 'validating' then
  local exceeded = exceeded_quota(id, fields, tonumber(ARGV[3]), ARGV[4])
  if exceeded then return exceeded end
end
local outcome = transition(id, event, fields, pin_of(ARGV[5], ARGV[6]))
if outcome == 'ok' and is_start then
  local values = redis.call('HMGET', batch_key(id), 'plan', 'lane')
  redis.call('PERSIST', plan_key(id, values[1]))
  local lanes = words(values[2])
  for _, lane in ipairs(lanes) do redis.call('PERSIST', pending_key(id, values[1], lanes, lane)) end
end
return outcome
