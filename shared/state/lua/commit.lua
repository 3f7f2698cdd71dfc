-- Records a part: the first commit of a slice wins, everything after is a no-op.
-- ARGV: lane, batch id, index, epoch, part (JSON), completed, failed, input tokens, cached tokens,
-- output tokens, reasoning tokens, what to announce of the slice (JSON; '' for nothing), then id and
-- record (JSON) of each row that killed engines
-- Returns 'ok' (also when this very part is recorded already), 'committed' (somebody was first),
-- 'fenced' or 'closed'.
local MOST_DEAD_ROWS = 10000
local lane, id, index, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key, parts, inflight = batch_key(id), ns .. 'parts:' .. id, ns .. 'inflight:' .. id
local batch = redis.call('HMGET', key, 'status', 'lane', 'lane_failed:' .. lane, 'plan')
local status = batch[1]
local recorded = redis.call('HGET', parts, index)
local current = redis.call('HGET', ns .. 'epochs:' .. id, index)

-- The parts of a batch were swept at its end; one that was written since, nobody would find.
local function refuse(outcome)
  local name = cjson.decode(ARGV[5])[1]
  if FINAL[status] and current and not (recorded and cjson.decode(recorded)[1] == name) then
    redis.call('ZADD', ns .. 'garbage', now, name)
  end
  return outcome
end

if recorded == ARGV[5] then return 'ok' end
if recorded then return refuse('committed') end
if current ~= epoch then return refuse('fenced') end
-- What the batch had on the lane was given up.
if batch[3] then return refuse('fenced') end
-- Once a batch is closing, its finaliser waits for the live claims and for nothing else.
if status ~= 'in_progress' and redis.call('SISMEMBER', inflight, index) == 0 then return refuse('closed') end
if not status or FINAL[status] then return refuse('closed') end
redis.call('HSET', parts, index, ARGV[5])
redis.call('ZREM', lane_key(lane, 'claims'), id .. ':' .. index)
redis.call('ZREM', lane_key(lane, 'ready'), id .. ':' .. index)
redis.call('ZREM', lane_key(lane, 'suspects'), id .. ':' .. index)
if redis.call('SREM', inflight, index) == 0 and batch[4] then
  -- It was given back to a batch that was paused, or put in a new order, since.
  local pending = pending_key(id, batch[4], words(batch[2]), lane)
  if redis.call('ZREM', pending, index) == 1 and redis.call('ZCARD', pending) == 0 then
    unwait(lane, id)
  end
end
local rows, done = tonumber(ARGV[6]) + tonumber(ARGV[7]), 0
redis.call('HINCRBY', lane_key(lane, 'job'), 'rows', rows)
redis.call('HINCRBY', lane_key(lane, 'job'), 'slices', 1)
-- An engine that gives a result is one that works.
if rows > (#ARGV - 12) / 2 then redis.call('HDEL', lane_key(lane, 'job'), 'deaths') end
for i = 13, #ARGV, 2 do
  redis.call('HSET', ns .. 'dead-rows', ARGV[i], ARGV[i + 1])
  redis.call('ZADD', ns .. 'dead-rows-since', int(now_ms), ARGV[i])
end
if #ARGV > 12 then
  for _, oldest in ipairs(redis.call('ZRANGE', ns .. 'dead-rows-since', 0, -1 - MOST_DEAD_ROWS)) do
    redis.call('ZREM', ns .. 'dead-rows-since', oldest)
    redis.call('HDEL', ns .. 'dead-rows', oldest)
  end
end
for i, field in ipairs({'completed', 'failed', 'input_tokens', 'cached_tokens', 'output_tokens',
  'reasoning_tokens'}) do
  local sum = redis.call('HINCRBY', key, field, ARGV[5 + i])
  if i <= 2 then done = done + sum end
end
-- In the order of completion: by how many rows were there before.
redis.call('ZADD', ns .. 'commits:' .. id, int(done - rows), index)
local committed = redis.call('HINCRBY', key, 'slices_committed', 1)
-- One of several lanes is rid of the batch as soon as it has nothing left of it.
if batch[2] and batch[2] ~= lane then
  redis.call('HINCRBY', key, 'rows_left:' .. lane, -rows)
  if redis.call('HINCRBY', key, 'slices_left:' .. lane, -1) == 0 then
    redis.call('ZREM', lane_key(lane, 'active'), id)
  end
end
if ARGV[12] ~= '' then
  local sequence, text = next_event(id)
  put_out('slice.committed', sequence, int(now_ms), text, 'slice', ARGV[12])
end
if status == 'in_progress' then
  local values = redis.call('HMGET', key, 'slices_total', 'slices_given_up')
  if committed + tonumber(values[2] or 0) == tonumber(values[1]) then
    transition(id, 'rows_finished')
  else
    progress(id)
  end
elseif redis.call('SCARD', inflight) == 0 then
  ring('dispatcher')
end
return 'ok'
