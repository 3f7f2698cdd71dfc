-- needs: slice, waiting
-- The lists from which slices are claimed: `ready`, and `suspects`, which run apart from all others.

-- Puts a slice into its lane's list. It is a suspect if an engine died in it, or if its batch starts
-- with strikes for each of its rows.
local function make_ready(lane, id, index, rank)
  local batch = redis.call('HMGET', batch_key(id), 'strikes', 'plan')
  if batch[1] and redis.call('HSETNX', ns .. 'strikes:' .. id, index, batch[1]) == 1 then
    local slice = cjson.decode(redis.call('HGET', plan_key(id, batch[2]), index))
    local strike_ranges = '[[[0,' .. int(slice[4]) .. ',' .. batch[1] .. ']],""]'
    redis.call('HSET', ns .. 'doubts:' .. id, index, strike_ranges)
  end
  local is_suspect = redis.call('HEXISTS', ns .. 'strikes:' .. id, index) == 1
  redis.call('ZADD', lane_key(lane, is_suspect and 'suspects' or 'ready'),
    is_suspect and int(now_ms) or rank, id .. ':' .. index)
end

-- Makes the batch's ready slices and suspects on the lane pending again.
local function make_pending(lane, id, lanes, plan)
  local is_any = false
  for _, list in ipairs({lane_key(lane, 'ready'), lane_key(lane, 'suspects')}) do
    for _, member in ipairs(redis.call('ZRANGE', list, 0, -1)) do
      local owner, index = split_member(member)
      if owner == id then
        redis.call('ZREM', list, member)
        redis.call('ZADD', pending_key(id, plan, lanes, lane), index, index)
        is_any = true
      end
    end
  end
  if is_any and redis.call('ZSCORE', lane_key(lane, 'active'), id) then start_waiting(lane, id) end
end
