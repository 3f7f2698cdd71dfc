-- needs: open
-- Keeps what is predicted of a batch that runs. ARGV: batch id, prediction (JSON), the warning that it
-- may be late (JSON; '' for none), and what its lane learns from once it has ended ('' for nothing new)
-- Returns 1, or 0 if the batch does not run.
local key = batch_key(ARGV[1])
local values = redis.call('HMGET', key, 'status', 'paused', 'warnings')
-- Nobody knows when an open batch will end.
if values[1] ~= 'in_progress' or values[2] or takes_rows(ARGV[1]) then return 0 end
redis.call('HSET', key, 'predicted', ARGV[2])
if ARGV[4] ~= '' then redis.call('HSETNX', key, 'foreseen_later', ARGV[4]) end
local warnings = {}
if ARGV[3] ~= '' then warnings[1] = cjson.decode(ARGV[3]) end
for _, warning in ipairs(cjson.decode(values[3] or '[]')) do
  if warning.code ~= 'deadline_at_risk' then warnings[#warnings + 1] = warning end
end
if #warnings > 0 then
  redis.call('HSET', key, 'warnings', cjson.encode(warnings))
else
  redis.call('HDEL', key, 'warnings')
end
return 1
