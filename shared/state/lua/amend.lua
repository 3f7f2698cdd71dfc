-- Changes what a client may change of a batch. ARGV: batch id, priority ('' to leave it), metadata
-- (JSON; 'null' takes it away, '' leaves it)
-- Returns 'ok', 'repeat' when nothing changes, 'missing', or the status in which no priority counts.
local id, key = ARGV[1], batch_key(ARGV[1])
local values = redis.call('HMGET', key, 'status', 'priority', 'metadata', 'lane', 'plan')
local status = values[1]
if not status then return 'missing' end
if ARGV[2] ~= '' and status ~= 'validating' and status ~= 'in_progress' then return status end
local is_reordered = ARGV[2] ~= '' and ARGV[2] ~= values[2]
local is_renamed = ARGV[3] ~= '' and ARGV[3] ~= (values[3] or 'null')
if not is_reordered and not is_renamed then return 'repeat' end
if is_renamed then
  if ARGV[3] == 'null' then redis.call('HDEL', key, 'metadata')
  else redis.call('HSET', key, 'metadata', ARGV[3]) end
end
if is_reordered then
  redis.call('HSET', key, 'priority', ARGV[2])
  -- What is ready gets its place anew.
  local lanes = words(values[4])
  if status == 'in_progress' then
    for _, lane in ipairs(lanes) do
      unready(id, lane, lanes, values[5])
      if redis.call('ZSCORE', lane_key(lane, 'waiting'), id) then wait(lane, id) end
    end
  end
  ring('dispatcher')
end
announce(id, 'batch.updated')
return 'ok'
