-- Notes that a batch cannot run on because its input is gone; the dispatcher fails it.
-- ARGV: lane, batch id
if redis.call('HGET', batch_key(ARGV[2]), 'status') ~= 'in_progress' then return 0 end
redis.call('SADD', lane_key(ARGV[1], 'lost'), ARGV[2])
ring('dispatcher')
return 1
