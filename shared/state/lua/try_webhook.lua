-- Requests a test delivery. ARGV: endpoint, test, event type, seconds that it may take
-- Returns 1, or 0 while another test of the endpoint is running.
-- One that has ended is not run again: the answer to the step before may be lost.
if redis.call('EXISTS', ns .. 'webhook-test-answer:' .. ARGV[2]) == 1 then return 1 end
local mark = ns .. 'webhook-testing:' .. ARGV[1]
local running = redis.call('GET', mark)
if running then return running == ARGV[2] and 1 or 0 end
redis.call('SET', mark, ARGV[2], 'EX', ARGV[4])
redis.call('RPUSH', ns .. 'webhook-tests',
  cjson.encode({id = ARGV[2], endpoint = ARGV[1], type = ARGV[3], at = now}))
ring('webhooks')
return 1
