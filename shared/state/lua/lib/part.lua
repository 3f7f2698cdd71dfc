-- needs: spent, totals
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

-- While a part that was taken back is not there again, rows are counted as done that are not: `gap` is
-- how many, and `gap_from` the first of their places in the order of completion.
local function open_gap(id, index, rows)
  local place = redis.call('ZSCORE', ns .. 'commits:' .. id, index)
  if not place then return end
  redis.call('HINCRBY', batch_key(id), 'gap', rows)
  local first = redis.call('HGET', batch_key(id), 'gap_from')
  redis.call('HSET', batch_key(id), 'gap_from', int(math.min(tonumber(first or place), tonumber(place))))
end

local function close_gap(id, rows)
  if redis.call('HINCRBY', batch_key(id), 'gap', -rows) <= 0 then
    redis.call('HDEL', batch_key(id), 'gap', 'gap_from')
  end
end

-- For metrics: rows, tokens, and how long the batch waited for its first result.
local function count_totals(id, lane, usage)
  local batch = redis.call('HMGET', batch_key(id), 'tenant', 'created_at')
  if redis.call('HSETNX', batch_key(id), 'first_result_at', int(now)) == 1 then
    add_total('first_results', lane, '-', 1)
    add_total('first_seconds', lane, '-', math.max(0, now - tonumber(batch[2])))
  end
  for i = 1, 5 do add_total(COUNTERS[i], lane, batch[1], tonumber(usage[i])) end
end

-- Adds what else a part counts, the fields of `RowCounts`, to its batch; with -1 as `sign` it is taken back.
local function count_rows(id, part, sign)
  for i, field in ipairs({'cached_rows', 'asked_again'}) do
    local count = (part[10] or {})[i] or 0
    if count > 0 then redis.call('HINCRBY', batch_key(id), field, int(sign * count)) end
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
  -- In the order of completion: the score is how many rows were done before. A slice whose part was
  -- taken back has its place already.
  done = done + tonumber(redis.call('HGET', batch_key(id), 'gap') or 0)
  if redis.call('ZADD', ns .. 'commits:' .. id, 'NX', int(done - rows), index) == 0 then
    close_gap(id, rows)
  end
  count_for_lane(id, lane, lanes, rows)
  count_totals(id, lane, usage)
  local decoded = cjson.decode(part)
  count_spent(id, lane, decoded, 1)
  count_rows(id, decoded, 1)
  return redis.call('HINCRBY', batch_key(id), 'slices_committed', 1)
end
