-- needs: event, slice, ready, waiting
-- Pauses or resumes a batch that has not finished running. ARGV: batch id, '1' to pause or '0'
-- Returns 'ok', 'repeat' when nothing changes, 'missing', or the status that rules it out.
local id, key, is_pause = ARGV[1], batch_key(ARGV[1]), ARGV[2] == '1'
local values = redis.call('HMGET', key, 'status', 'paused', 'lane', 'plan', 'created_at')
local status = values[1]
if not status then return 'missing' end
if status ~= 'validating' and status ~= 'in_progress' then return status end
if (values[2] ~= false) == is_pause then return 'repeat' end
if is_pause then redis.call('HSET', key, 'paused', '1') else redis.call('HDEL', key, 'paused') end
-- While it waits for its user, its end cannot be predicted, nor anything learned from it.
redis.call('HDEL', key, 'predicted', 'foreseen', 'foreseen_later')
-- A paused batch is no work for its lanes: it keeps no lane job alive and is not fed.
if status == 'in_progress' then
  local lanes = words(values[3])
  local counts = redis.call('HMGET', key, 'slices_total', 'slices_committed')
  local is_done = tonumber(counts[1] or -1) == tonumber(counts[2] or 0)
  for _, lane in ipairs(lanes) do
    if is_pause then
      redis.call('ZREM', lane_key(lane, 'active'), id)
      stop_waiting(lane, id)
      make_pending(lane, id, lanes, values[4])
    -- A lane on which nothing is left does not get the batch back.
    elseif (#lanes == 1 and not is_done)
      or (#lanes > 1 and tonumber(redis.call('HGET', key, 'slices_left:' .. lane)) > 0) then
      redis.call('ZADD', lane_key(lane, 'active'), values[5], id)
      if redis.call('ZCARD', pending_key(id, values[4], lanes, lane)) > 0 then
        start_waiting(lane, id)
      end
    end
  end
end
announce(id, is_pause and 'batch.paused' or 'batch.resumed')
if is_pause then ring('stops') end
ring('dispatcher')
return 'ok'
