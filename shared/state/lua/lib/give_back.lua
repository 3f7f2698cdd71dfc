-- needs: slice, ready, served, totals

-- Ends a claim without a result. The slice returns to the head of its lane while its batch runs, and
-- becomes pending if its batch is paused.
local function give_back(lane, id, index, reason)
  redis.call('ZREM', lane_key(lane, 'claims'), id .. ':' .. index)
  local was_claimed = leave_inflight(id, index)
  local values = redis.call('HMGET', batch_key(id), 'status', 'paused', 'plan', 'lane', 'tenant')
  if was_claimed and values[5] then
    charge_claim(lane, values[5], -predicted_tokens(id, values[3], index))
  end
  if values[1] ~= 'in_progress' then return ring('dispatcher') end
  if redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 1 then return end
  redis.call('HSET', ns .. 'reasons:' .. id, index, reason .. ' ' .. int(now))
  add_total('given_back', lane, reason, 1)
  if values[2] then
    redis.call('ZADD', pending_key(id, values[3], words(values[4]), lane), index, index)
  else
    make_ready(lane, id, index, -1)
    ring('lane:' .. lane)
  end
end
