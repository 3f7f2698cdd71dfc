-- ARGV: batch id, event, field and value pairs
local fields = {}
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
local outcome = transition(ARGV[1], ARGV[2], fields)
if outcome == 'ok' and ARGV[2] == 'input_accepted' then
  local plan = redis.call('HGET', batch_key(ARGV[1]), 'plan')
  redis.call('PERSIST', ns .. 'plan:' .. ARGV[1] .. ':' .. plan)
  redis.call('PERSIST', ns .. 'pending:' .. ARGV[1] .. ':' .. plan)
end
return outcome
