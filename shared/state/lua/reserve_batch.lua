-- needs: quota, rate
-- Counts a new batch of a tenant if it may be created now. A batch that exists is not counted.
-- ARGV: tenant, batch id, new batches, microseconds in which they may come, max enqueued requests,
-- then pairs: a model that could run it, max enqueued prompt tokens of that model
-- Returns {'known', fingerprint}, {'ok'}, {'wait', microseconds, microseconds until all are free}, or
-- the quota that is used up: {'requests'}, or {'tokens'} if that is so for every model.
local fingerprint = redis.call('HGET', batch_key(ARGV[2]), 'fingerprint')
if fingerprint then return {'known', fingerprint} end
if queue_size(ARGV[1], '') >= tonumber(ARGV[5]) then return {'requests'} end
local are_full = #ARGV > 5
for i = 6, #ARGV, 2 do
  local _, tokens = queue_size(ARGV[1], ARGV[i])
  are_full = are_full and tokens >= tonumber(ARGV[i + 1])
end
if are_full then return {'tokens'} end
local count = ns .. 'calls:batches:' .. ARGV[1]
local wait, _, reset, mark = rate_status(count, tonumber(ARGV[3]), tonumber(ARGV[4]))
if wait > 0 then return {'wait', wait, reset} end
count_call(count, mark)
return {'ok'}
