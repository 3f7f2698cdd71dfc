-- needs: event, ready, waiting
-- Changes what a client may change about a batch.
-- ARGV: batch id, priority ('' to leave it), metadata (JSON; 'null' removes it, '' leaves it)
-- Returns 'ok', 'repeat' when nothing changes, 'missing', or the status in which a priority no longer
-- matters.
local id, priority, metadata = ARGV[1], ARGV[2], ARGV[3]
local key = batch_key(id)
local values = redis.call('HMGET', key, 'status', 'priority', 'metadata', 'lane', 'plan')
local status = values[1]
if not status then return 'missing' end
if priority ~= '' and status ~= 'validating' and status ~= 'in_progress' then return status end
local is_new_priority = priority ~= '' and priority ~= values[2]
local is_new_metadata = metadata ~= '' and metadata ~= (values[3] or 'null')
if not is_new_priority and not is_new_metadata then return 'repeat' end
if is_new_metadata then
  if metadata == 'null' then redis.call('HDEL', key, 'metadata')
  else redis.call('HSET', key, 'metadata', metadata) end
end
if is_new_priority then
  redis.call('HSET', key, 'priority', priority)
  -- Its ready slices are ordered again.
  local lanes = words(values[4])
  if status == 'in_progress' then
    for _, lane in ipairs(lanes) do
      make_pending(lane, id, lanes, values[5])
      if redis.call('ZSCORE', lane_key(lane, 'waiting'), id) then start_waiting(lane, id) end
    end
  end
  ring('dispatcher')
end
announce(id, 'batch.updated')
return 'ok'
