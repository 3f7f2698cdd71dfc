-- needs: engine
-- Records that the lane's engine cannot start. ARGV: lane, lane job ('' for none), reason
-- Returns 1, or 0 if the lane has another job.
if (redis.call('HGET', lane_key(ARGV[1], 'job'), 'id') or '') ~= ARGV[2] then return 0 end
record_engine_failure(ARGV[1], ARGV[3])
return 1
