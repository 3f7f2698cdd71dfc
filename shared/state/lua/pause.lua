-- Pauses a batch that has not finished running, or lets it go on. ARGV: batch id, '1' or '0'
-- Returns 'ok', 'repeat' when it is so already, 'missing', or the status that rules it out.
local id, key = ARGV[1], batch_key(ARGV[1])
local values = redis.call('HMGET', key, 'status', 'paused', 'lane', 'plan', 'created_at')
local status = values[1]
if not status then return 'missing' end
if status ~= 'validating' and status ~= 'in_progress' then return status end
if (values[2] ~= false) == (ARGV[2] == '1') then return 'repeat' end
if ARGV[2] == '1' then redis.call('HSET', key, 'paused', '1') else redis.call('HDEL', key, 'paused') end
-- A paused batch is no work of its lanes: it keeps no lane job, and no place among those to feed.
if status == 'in_progress' then
  local lanes = words(values[3])
  for _, lane in ipairs(lanes) do
    if ARGV[2] == '1' then
      redis.call('ZREM', lane_key(lane, 'active'), id)
      unwait(lane, id)
      unready(id, lane, lanes, values[4])
    -- Not to a lane that has nothing left of it.
    elseif #lanes == 1 or tonumber(redis.call('HGET', key, 'slices_left:' .. lane)) > 0 then
      redis.call('ZADD', lane_key(lane, 'active'), values[5], id)
      if redis.call('ZCARD', pending_key(id, values[4], lanes, lane)) > 0 then
        wait(lane, id)
      end
    end
  end
end
announce(id, ARGV[2] == '1' and 'batch.paused' or 'batch.resumed')
ring('dispatcher')
return 'ok'
