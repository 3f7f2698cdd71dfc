-- The numbers of a part, in the order of `SliceUsage`.
local COUNTERS = {'completed', 'failed', 'input_tokens', 'cached_tokens', 'output_tokens',
  'reasoning_tokens'}

-- One of several lanes releases the batch as soon as nothing of it is left there.
local function count_for_lane(id, lane, lanes, rows)
  if not lanes or lanes == lane then return end
  redis.call('HINCRBY', batch_key(id), 'rows_left:' .. lane, -rows)
  if redis.call('HINCRBY', batch_key(id), 'slices_left:' .. lane, -1) == 0 then
    redis.call('ZREM', lane_key(lane, 'active'), id)
  end
end

-- Records a slice's part and counts it for its batch, whose lanes are `lanes`. `usage` are the numbers
-- of COUNTERS. Returns how many of the batch's slices have one now.
local function record_part(id, lane, lanes, index, part, usage)
  redis.call('HSET', ns .. 'parts:' .. id, index, part)
  redis.call('HDEL', ns .. 'kept:' .. id, index)
  local rows, done = tonumber(usage[1]) + tonumber(usage[2]), 0
  for i, field in ipairs(COUNTERS) do
    local sum = redis.call('HINCRBY', batch_key(id), field, int(usage[i]))
    if field == 'completed' or field == 'failed' then done = done + sum end
  end
  -- In the order of completion: the score is how many rows were done before.
  redis.call('ZADD', ns .. 'commits:' .. id, int(done - rows), index)
  count_for_lane(id, lane, lanes, rows)
  return redis.call('HINCRBY', batch_key(id), 'slices_committed', 1)
end
