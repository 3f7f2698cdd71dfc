-- needs: lifecycle, event, quota, slice, waiting, notify, spent

-- Releases everything that only a live batch needs.
local function retire(id)
  local values = redis.call('HMGET', batch_key(id), 'plan', 'input_file_id', 'lane')
  redis.call('ZREM', ns .. 'deadlines', id)
  for _, what in ipairs({'parts:', 'epochs:', 'strikes:', 'inflight:', 'commits:', 'jobs:',
    'reasons:', 'doubts:', 'begun:', 'ending:',
    'kept:', 'names:'}) do
    redis.call('EXPIRE', ns .. what .. id, ENDED_BATCH_SECONDS)
  end
  if values[1] then
    redis.call('EXPIRE', plan_key(id, values[1]), ENDED_BATCH_SECONDS)
    local lanes = words(values[3])
    for _, lane in ipairs(lanes) do
      redis.call('EXPIRE', pending_key(id, values[1], lanes, lane), ENDED_BATCH_SECONDS)
    end
  end
  -- Later, since a slow planner may still be writing it.
  redis.call('ZADD', ns .. 'garbage', int(now + ENDED_BATCH_SECONDS), 'batches/' .. id .. '/plan.json')
  redis.call('ZADD', ns .. 'garbage', 'XX', 'LT', int(now + ENDED_BATCH_SECONDS),
    'batches/' .. id .. '/copies/')
  local readers = ns .. 'readers:' .. values[2]
  redis.call('SREM', readers, id)
  local garbage = redis.call('HGET', ns .. 'deleted', values[2])
  if garbage and redis.call('SCARD', readers) == 0 then
    redis.call('HDEL', ns .. 'deleted', values[2])
    redis.call('ZADD', ns .. 'garbage', now, garbage)
  end
end

-- Adds the batch to its lanes when it starts to run, and takes it off them when it stops.
local function update_lanes(id, is_starting, created_at, is_paused)
  -- An open batch joins its lane with its first rows.
  if is_starting and redis.call('HGET', batch_key(id), 'slices_total') == '0' then return end
  for _, lane in ipairs(words(redis.call('HGET', batch_key(id), 'lane'))) do
    if is_starting then
      redis.call('SADD', ns .. 'lanes', lane)
      if not is_paused then
        redis.call('ZADD', lane_key(lane, 'active'), created_at, id)
        start_waiting(lane, id)
      end
    else
      redis.call('ZREM', lane_key(lane, 'active'), id)
      stop_waiting(lane, id)
    end
  end
end

-- The only place that writes a status after a batch's creation. Returns 'ok', 'repeat' when the batch
-- already has the target status, 'missing', 'moved' when another event has the number of `pin`, or
-- the status that rules the event out. A pin that is `silent` stands for an event of long ago, which
-- is not announced again.
local function transition(id, event, fields, pin)
  local key, row = batch_key(id), TRANSITIONS[event]
  local values = redis.call('HMGET', key, 'status', 'created_at', 'paused', 'sequence')
  local status = values[1]
  if not status then return 'missing' end
  if status == row.target then return 'repeat' end
  if not row.sources[status] then return status end
  if pin and tonumber(values[4] or 0) >= tonumber(pin.sequence) then return 'moved' end
  local at = pin and math.floor(tonumber(pin.at_ms) / 1000) or now
  local is_silent = pin and pin.silent
  if fields and #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  -- A batch that runs again has been running since it began.
  local since = event == 'part_broken' and redis.call('HGET', key, row.target .. '_at')
  redis.call('HSET', key, 'status', row.target, row.target .. '_at', since or int(at))
  redis.call('ZREM', ns .. 'status:' .. status, id)
  if row.target == 'in_progress' then count_in_queue(id, 1) end
  if status == 'in_progress' then
    count_in_queue(id, -1)
    -- Then nothing of it runs any more.
    if event ~= 'rows_finished' then ring('stops') end
  end
  update_lanes(id, row.target == 'in_progress', values[2], values[3])
  if not is_silent then announce(id, 'batch.' .. row.target, pin) end
  if FINAL[row.target] then
    -- A rebuild may make a batch again that had ended and left, and was counted then.
    if not redis.call('ZSCORE', ns .. 'endings', id) then
      redis.call('HINCRBY', ns .. 'ended', row.target, 1)
      bill(id, at)
    end
    redis.call('ZADD', ns .. 'endings', int(at), id)
    redis.call('ZADD', ns .. 'leaving', now, id)
    if not is_silent then
    local told = redis.call('HMGET', batch_key(id), 'tenant', 'sequence', 'traceparent')
    notify_webhooks(told[1], id, 'batch.' .. row.target, at, told[2], told[3] or '')
  end
  end
  -- The results of a failed batch can be read as long as the places of its parts are known.
  if row.target == 'failed' and redis.call('HEXISTS', key, 'plan') == 1 then
    redis.call('ZADD', ns .. 'garbage', int(now + ENDED_BATCH_SECONDS), 'batches/' .. id .. '/parts/')
  end
  if FINAL[row.target] then retire(id) else redis.call('ZADD', ns .. 'status:' .. row.target, now, id) end
  ring('dispatcher')
  return 'ok'
end
