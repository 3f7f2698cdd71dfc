-- Asks for a test delivery. ARGV: endpoint, test, event type, seconds that it may take
-- Returns 1, or 0 while another test of the endpoint is under way.
local mark = ns .. 'webhook-testing:' .. ARGV[1]
local under_way = redis.call('GET', mark)
if under_way and under_way ~= ARGV[2] then return 0 end
if under_way then return 1 end
redis.call('SET', mark, ARGV[2], 'EX', ARGV[4])
redis.call('RPUSH', ns .. 'webhook-tests',
  cjson.encode({id = ARGV[2], endpoint = ARGV[1], type = ARGV[3], at = now}))
ring('webhooks')
return 1
