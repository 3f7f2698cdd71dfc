-- needs: quota, slice, waiting

-- Takes a live batch out of every list that leads to it, before it is written again from S3. Its slices
-- go, unless they are those of `new_plan`, which is written already: the answer to the step before may
-- be lost.
local function detach(id, new_plan)
  local values = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane')
  redis.call('ZREM', ns .. 'status:' .. values[1], id)
  if values[1] == 'in_progress' then count_in_queue(id, -1) end
  local lanes = words(values[3])
  for _, lane in ipairs(lanes) do
    redis.call('ZREM', lane_key(lane, 'active'), id)
    stop_waiting(lane, id)
    for _, list in ipairs({'ready', 'suspects', 'claims'}) do
      for _, member in ipairs(redis.call('ZRANGE', lane_key(lane, list), 0, -1)) do
        if split_member(member) == id then redis.call('ZREM', lane_key(lane, list), member) end
      end
    end
    if values[2] ~= new_plan then redis.call('UNLINK', pending_key(id, values[2], lanes, lane)) end
  end
  if values[2] and values[2] ~= new_plan then redis.call('UNLINK', plan_key(id, values[2])) end
  redis.call('UNLINK', ns .. 'inflight:' .. id, ns .. 'begun:' .. id, ns .. 'ending:' .. id)
end
