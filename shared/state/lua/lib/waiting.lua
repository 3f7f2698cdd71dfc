-- needs: served
-- A batch waits on a lane while it has pending slices there. `waiting` has all waiting batches. Each
-- tenant also has a list of its own, the most urgent first, so that no tenant is hidden behind
-- another's batches. Its order ages priorities as shared/ordering does.

local function tenant_key(lane, tenant) return lane_key(lane, 'waiting:' .. tenant) end

local function start_waiting(lane, id)
  local values = redis.call('HMGET', batch_key(id), 'tenant', 'created_at', 'priority')
  local place = tonumber(values[2]) - AGEING_SECONDS * tonumber(values[3] or 0)
  redis.call('ZADD', lane_key(lane, 'waiting'), values[2], id)
  redis.call('ZADD', tenant_key(lane, values[1]), int(place), id)
  if redis.call('SADD', lane_key(lane, 'tenants'), values[1]) == 1 then
    lift(lane, values[1], redis.call('SMEMBERS', lane_key(lane, 'tenants')))
  end
end

local function stop_waiting(lane, id)
  if redis.call('ZREM', lane_key(lane, 'waiting'), id) == 0 then return end
  local tenant = redis.call('HGET', batch_key(id), 'tenant')
  redis.call('ZREM', tenant_key(lane, tenant), id)
  if redis.call('EXISTS', tenant_key(lane, tenant)) == 0 then
    redis.call('SREM', lane_key(lane, 'tenants'), tenant)
    if redis.call('EXISTS', lane_key(lane, 'tenants')) == 0 then remember_last(lane, tenant) end
  end
end
