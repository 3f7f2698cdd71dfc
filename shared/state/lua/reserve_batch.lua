-- Whether a tenant may make one more batch now; counts it if so, but never a repeat of a known one.
-- ARGV: tenant, batch id, new batches, microseconds in which they may come, most enqueued requests,
-- then pairs: a model that could run it, most enqueued prompt tokens of that one
-- Returns {'known', fingerprint}, {'ok'}, {'wait', microseconds, microseconds until all are free},
-- {'requests'} or {'tokens'}: the queue that is full. For tokens every model's has to be.
local seen = redis.call('HGET', batch_key(ARGV[2]), 'fingerprint')
if seen then return {'known', seen} end
if enqueued(ARGV[1], '') >= tonumber(ARGV[5]) then return {'requests'} end
local are_full = #ARGV > 5
for i = 6, #ARGV, 2 do
  local _, tokens = enqueued(ARGV[1], ARGV[i])
  are_full = are_full and tokens >= tonumber(ARGV[i + 1])
end
if are_full then return {'tokens'} end
local count = ns .. 'calls:batches:' .. ARGV[1]
local wait, _, reset, mark = standing(count, tonumber(ARGV[3]), tonumber(ARGV[4]))
if wait > 0 then return {'wait', wait, reset} end
let_in(count, mark)
return {'ok'}
