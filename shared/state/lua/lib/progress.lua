-- needs: event
-- Progress matters only while it is fresh. Only the newest of each batch waits, in memory alone, and
-- a newer one replaces it.

-- If the last progress of the batch was just now, `take_progress` makes the next one.
local function report_progress(id)
  if now_ms - tonumber(redis.call('HGET', batch_key(id), 'progress_ms') or 0) < PROGRESS_MS then
    redis.set_repl(redis.REPL_NONE)
    redis.call('SADD', ns .. 'progress-late', id)
    redis.set_repl(redis.REPL_ALL)
    return
  end
  redis.call('HSET', batch_key(id), 'progress_ms', int(now_ms))
  local sequence, snapshot, fields = next_event(id)
  note_pace(id, fields)
  local event = publish_event(id, 'batch.progress', sequence, int(now_ms), snapshot)
  redis.set_repl(redis.REPL_NONE)
  redis.call('HSET', ns .. 'progress', id, event)
  redis.call('SREM', ns .. 'progress-late', id)
  redis.set_repl(redis.REPL_ALL)
end
