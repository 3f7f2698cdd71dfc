-- needs: slice, served, waiting, progress, transition
-- Ends a batch's work on a lane whose engine cannot start. A batch with no other lane fails. Otherwise
-- the slices of this lane are given up, and the finaliser writes an error for each of their rows.
-- ARGV: lane, batch id, reason, field and value pairs for a batch that fails
-- Returns what `transition` does; also 'repeat' if the lane was given up already.
local lane, id, key = ARGV[1], ARGV[2], batch_key(ARGV[2])
local batch = redis.call('HMGET', key, 'status', 'lane', 'plan', 'lane_failed:' .. lane, 'tenant')
if not batch[1] then return 'missing' end
if batch[2] == lane or batch[1] ~= 'in_progress' then
  local fields = {}
  for i = 4, #ARGV do fields[#fields + 1] = ARGV[i] end
  return transition(id, 'lane_failed', fields)
end
if batch[4] then return 'repeat' end

local function leave_lane()
  redis.call('ZREM', lane_key(lane, 'active'), id)
  stop_waiting(lane, id)
  redis.call('DEL', pending_key(id, batch[3], words(batch[2]), lane))
  for _, list in ipairs({'ready', 'suspects', 'claims'}) do
    for _, member in ipairs(redis.call('ZRANGE', lane_key(lane, list), 0, -1)) do
      local owner, index = split_member(member)
      if owner == id then
        redis.call('ZREM', lane_key(lane, list), member)
        if leave_inflight(id, index) then
          charge_claim(lane, batch[5], -predicted_tokens(id, batch[3], index))
        end
      end
    end
  end
end

local left = redis.call('HMGET', key, 'slices_left:' .. lane, 'rows_left:' .. lane)
redis.call('HSET', key, 'lane_failed:' .. lane, ARGV[3], 'first_error', ARGV[3],
  'slices_left:' .. lane, 0, 'rows_left:' .. lane, 0)
redis.call('HINCRBY', key, 'given_up', left[2])
local given_up = redis.call('HINCRBY', key, 'slices_given_up', left[1])
leave_lane()
local values = redis.call('HMGET', key, 'slices_total', 'slices_committed')
if given_up + tonumber(values[2] or 0) == tonumber(values[1]) then
  return transition(id, 'rows_finished')
end
report_progress(id)
ring('stops')
ring('dispatcher')
return 'ok'
