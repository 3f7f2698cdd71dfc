-- Says that the lane's engine cannot start. ARGV: lane, lane job, reason. Returns 1 or 0 (superseded).
if (redis.call('HGET', lane_key(ARGV[1], 'job'), 'id') or '') ~= ARGV[2] then return 0 end
fail_engine(ARGV[1], ARGV[3])
return 1
