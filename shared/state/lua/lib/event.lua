-- needs: lifecycle, scores
-- Events of batches: numbered, kept for replays, and written to the outbox.

-- The fields of the record that every event carries.
local SNAPSHOT = {
  'id', 'tenant', 'endpoint', 'model', 'status', 'input_file_id', 'output_file_id',
  'error_file_id', 'created_at', 'in_progress_at', 'expires_at', 'finalizing_at', 'completed_at',
  'failed_at', 'expired_at', 'cancelling_at', 'cancelled_at', 'completion_window', 'metadata',
  'total', 'completed', 'failed', 'input_tokens', 'cached_tokens', 'output_tokens',
  'reasoning_tokens', 'correlation_id', 'output_object', 'error_object', 'first_error',
  'paused', 'priority', 'traceparent', 'tracestate', 'deliver_results', 'given_up',
  'warnings', 'spent', 'prices', 'predicted', 'table', 'open_model', 'closed', 'cached_rows',
  'asked_again'
}

-- A pin gives an event its number, and its time in milliseconds, before it happens. S3 keeps both, so
-- the event stays the same one if Redis is lost. nil where `sequence` is ''.
local function pin_of(sequence, at_ms)
  if sequence == '' then return nil end
  return {sequence = int(tonumber(sequence)), at_ms = int(tonumber(at_ms))}
end

-- The number of the batch's next event, and the snapshot that it carries: as JSON and as a table.
local function next_event(id, pin)
  if pin then redis.call('HSET', batch_key(id), 'sequence', pin.sequence) end
  local sequence = pin and pin.sequence or redis.call('HINCRBY', batch_key(id), 'sequence', 1)
  local values, snapshot = redis.call('HMGET', batch_key(id), unpack(SNAPSHOT)), {}
  for i, field in ipairs(SNAPSHOT) do
    if values[i] then snapshot[field] = values[i] end
  end
  return sequence, cjson.encode(snapshot), snapshot
end

-- Sends the event to those who watch this batch now; what they miss is in the record. Returns the
-- event as they hear it.
local function publish_event(id, kind, sequence, at_ms, snapshot)
  local event = sequence .. ' ' .. at_ms .. ' ' .. kind .. ' ' .. snapshot
  redis.call('PUBLISH', ns .. 'watch:' .. id, event)
  return event
end

local function write_to_outbox(kind, sequence, at_ms, snapshot, ...)
  redis.call('XADD', ns .. 'outbox:events', '*', 'type', kind, 'sequence', sequence,
    'at_ms', at_ms, 'snapshot', snapshot, ...)
end

-- Keeps how far the batch is, for a plot of its pace. The marks of a long batch lie further apart.
local function note_pace(id, snapshot)
  local pace = ns .. 'pace:' .. id
  local function sum(one, other)
    return int(tonumber(snapshot[one] or 0) + tonumber(snapshot[other] or 0))
  end
  local rows, tokens = sum('completed', 'failed'), sum('input_tokens', 'output_tokens')
  local length = redis.call('RPUSH', pace, int(now_ms) .. ' ' .. rows .. ' ' .. tokens)
  if length > MAX_PACE_MARKS then
    local marks, kept = redis.call('LRANGE', pace, 0, -1), {}
    for i = 1, length, 2 do kept[#kept + 1] = marks[i] end
    redis.call('RPUSH', pace, unpack(kept))
    redis.call('LTRIM', pace, length, -1)
  end
end

-- Announces a change of the batch's state: in the outbox, to watchers, and in its history.
local function announce(id, kind, pin)
  local sequence, text, snapshot = next_event(id, pin)
  local at_ms = pin and pin.at_ms or int(now_ms)
  write_to_outbox(kind, sequence, at_ms, text)
  local history = ns .. 'events:' .. id
  local length = redis.call('RPUSH', history, publish_event(id, kind, sequence, at_ms, text))
  if length > MAX_EVENTS then redis.call('LTRIM', history, -MAX_EVENTS, -1) end
  if snapshot.in_progress_at then note_pace(id, snapshot) end
  if FINAL[snapshot.status] then
    for _, kept in ipairs({history, ns .. 'pace:' .. id}) do
      redis.call('EXPIRE', kept, EVENT_HISTORY_SECONDS)
    end
  end
  local changes = ns .. 'changes:' .. snapshot.tenant
  redis.call('ZADD', changes, next_score(changes), id)
  -- This event says everything that waiting progress would have said.
  redis.call('HDEL', ns .. 'progress', id)
  redis.call('SREM', ns .. 'progress-late', id)
end
