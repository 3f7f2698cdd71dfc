-- Ends an idle lane job. ARGV: lane, lane job. Returns 1, or 0 while the lane has work.
local key = lane_key(ARGV[1], 'job')
if redis.call('HGET', key, 'id') ~= ARGV[2] then return 1 end
if redis.call('ZCARD', lane_key(ARGV[1], 'active')) > 0
  or redis.call('ZCARD', lane_key(ARGV[1], 'claims')) > 0 then return 0 end
redis.call('HSET', key, 'id', '')
return 1
