-- Makes `new` the lane's job if `old` ('' for none) still is. ARGV: lane, old, new
-- Returns the id of the lane's job.
local key = lane_key(ARGV[1], 'job')
local current = redis.call('HGET', key, 'id') or ''
if current ~= ARGV[2] then return current end
redis.call('HSET', key, 'id', ARGV[3], 'opened_at_ms', int(now_ms), 'beat_at_ms', '0',
  'rows', '0', 'tokens', '0', 'slices', '0', 'executions', '0')
redis.call('HDEL', key, 'runs_on', 'full', 'spills_at', 'first_result_ms')
local engine = redis.call('HGET', ns .. 'engines', ARGV[1])
local is_warm = engine and cjson.decode(engine).state == 'running'
redis.call('HSET', key, 'is_warm', is_warm and '1' or '0')
-- The job that had its place ends at once.
ring('lane:' .. ARGV[1])
return ARGV[3]
