-- Says that a live call waits for an engine of the lane, or has just come. ARGV: lane, milliseconds for
-- which the lane is to have a job. In memory only.
redis.set_repl(redis.REPL_NONE)
local wanted = lane_key(ARGV[1], 'wanted')
local is_news = redis.call('EXISTS', wanted) == 0
redis.call('SET', wanted, '1', 'PX', ARGV[2])
if redis.call('SADD', ns .. 'lanes', ARGV[1]) == 1 or is_news then
  ring('dispatcher')
  ring('lane:' .. ARGV[1])
end
return 1
