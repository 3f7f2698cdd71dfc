-- Records that a lane job is alive. ARGV: lane, lane job, rows wanted, field and value pairs
-- Returns 1, or 0 if the lane has another job.
local key = lane_key(ARGV[1], 'job')
if redis.call('HGET', key, 'id') ~= ARGV[2] then return 0 end
local wanted = redis.call('HGET', key, 'rows_wanted')
redis.call('HSET', key, 'beat_at_ms', int(now_ms), 'rows_wanted', ARGV[3])
for i = 4, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
if wanted ~= ARGV[3] then ring('dispatcher') end
return 1
