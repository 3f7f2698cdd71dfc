-- needs: lifecycle, slice, waiting, served, part, progress, transition, spent
-- Takes back a slice's part, because its bytes are wrong. The slice runs again if its batch can.
-- ARGV: batch id, index, the part's key in S3
-- Returns 'again', 'lost' (its rows will not run any more), or 'changed' (it has no or another part).
local id, index, key = ARGV[1], ARGV[2], batch_key(ARGV[1])
local part = redis.call('HGET', ns .. 'parts:' .. id, index)
part = part and cjson.decode(part)
local batch = redis.call('HMGET', key, 'status', 'plan', 'lane', 'window_closed', 'tenant', 'paused')
local status, plan, lanes = batch[1], batch[2], words(batch[3])
if not part or part[1] ~= ARGV[3] or not status or FINAL[status] then return 'changed' end
local slice = cjson.decode(redis.call('HGET', plan_key(id, plan), index))
local lane, rows = lanes[(slice[6] or 0) + 1], slice[4]

-- Its rows no longer count as done. The order of completion keeps its place.
local function uncount()
  redis.call('HDEL', ns .. 'parts:' .. id, index)
  redis.call('HINCRBY', key, 'slices_committed', -1)
  for i, field in ipairs(COUNTERS) do redis.call('HINCRBY', key, field, int(-part[6][i])) end
  charge(lane, batch[5], -used_tokens(part[6]))
  count_spent(id, lane, part, -1)
  count_rows(id, part, -1)
  open_gap(id, index, part[6][1] + part[6][2])
end

-- Rows of a lane that was given up get its error.
local function give_up()
  redis.call('HINCRBY', key, 'slices_given_up', 1)
  redis.call('HINCRBY', key, 'given_up', rows)
end

local function run_again()
  redis.call('ZADD', pending_key(id, plan, lanes, lane), index, index)
  if #lanes > 1 then
    redis.call('HINCRBY', key, 'slices_left:' .. lane, 1)
    redis.call('HINCRBY', key, 'rows_left:' .. lane, rows)
  end
  if status == 'finalizing' then
    redis.call('HDEL', key, 'finalizing_at')
    transition(id, 'part_broken')
    -- Its other lanes have nothing left to do.
    for _, other in ipairs(lanes) do
      if #lanes > 1 and tonumber(redis.call('HGET', key, 'slices_left:' .. other) or 0) == 0 then
        redis.call('ZREM', lane_key(other, 'active'), id)
        stop_waiting(other, id)
      end
    end
  else
    if not batch[6] then
      redis.call('ZADD', lane_key(lane, 'active'), redis.call('HGET', key, 'created_at'), id)
      start_waiting(lane, id)
    end
    report_progress(id)
    ring('dispatcher')
  end
end

uncount()
local lane_failed = redis.call('HEXISTS', key, 'lane_failed:' .. lane) == 1
if lane_failed then give_up() end
if lane_failed or status == 'cancelling' or batch[4] then
  ring('dispatcher')
  return 'lost'
end
run_again()
return 'again'
