-- Keeps where a lane's engines take live calls. ARGV: lane, lane job, doors as JSON, milliseconds
-- Returns 1 if live calls have wanted an engine of late, otherwise 0. Another job's doors are not kept.
-- In memory only.
redis.set_repl(redis.REPL_NONE)
if redis.call('HGET', lane_key(ARGV[1], 'job'), 'id') == ARGV[2] then
  redis.call('SET', lane_key(ARGV[1], 'doors'), ARGV[3], 'PX', ARGV[4])
end
return redis.call('EXISTS', lane_key(ARGV[1], 'wanted'))
