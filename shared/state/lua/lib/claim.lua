-- needs: deaths, slice, served, tenant

-- A slice of a lane's list, with everything that a run needs from its batch; nil if the slice should
-- no longer run.
local function find_runnable(member)
  local id, index = split_member(member)
  local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'bucket', 'key', 'etag',
    'endpoint', 'tenant', 'version_id', 'engine_deaths', 'strikes', 'priority', 'created_at',
    'expires_at', 'total', 'slices_total', 'slices_given_up', 'slices_committed', 'traceparent', 'asking')
  local slice = batch[2] and redis.call('HGET', plan_key(id, batch[2]), index)
  if batch[1] ~= 'in_progress' or not slice
    or redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 1 then return nil end
  return {id = id, index = index, member = member, batch = batch, slice = slice,
    rows = cjson.decode(slice)[4], batch_rows = tonumber(batch[14] or 0)}
end

-- Moves a slice from its list to the lane job's claims. `has_begun` means that its rows go to the engine
-- now. Returns what `_claim` of claims.py reads.
local function grant_claim(lane, job, lease_ms, list, found, has_begun)
  local id, index, batch = found.id, found.index, found.batch
  redis.call('ZREM', list, found.member)
  redis.call('ZADD', lane_key(lane, 'claims'), int(now_ms + tonumber(lease_ms)), found.member)
  redis.call('SADD', ns .. 'inflight:' .. id, index)
  local left = tonumber(batch[15] or 0) - tonumber(batch[16] or 0) - tonumber(batch[17] or 0)
  if has_begun then redis.call('SADD', ns .. 'begun:' .. id, index) end
  redis.call('HSET', ns .. 'jobs:' .. id, index, job)
  redis.call('HSET', batch_key(id), 'claimed_at:' .. lane, int(now))
  redis.call('HSETNX', batch_key(id), 'started_at', int(now))
  charge_claim(lane, batch[7], cjson.decode(found.slice)[5])
  local epoch = redis.call('HINCRBY', ns .. 'epochs:' .. id, index, 1)
  local strikes = redis.call('HGET', ns .. 'strikes:' .. id, index) or 0
  return {id, tonumber(index), epoch, tonumber(strikes), found.slice, batch[3], batch[4], batch[5],
    batch[6], batch[7], batch[8] or '', redis.call('HGET', ns .. 'doubts:' .. id, index) or '',
    tonumber(batch[9] or 0), tonumber(batch[10] or 0), tonumber(batch[11] or 0),
    tonumber(batch[12] or 0), tonumber(batch[13] or 0), found.batch_rows,
    redis.call('HGET', ns .. 'kept:' .. id, index) or '',
    redis.call('SCARD', ns .. 'inflight:' .. id) == left, weight_of(batch[7]),
    deaths_today(batch[7]), limit_of(batch[7], 'engine_deaths_per_day', -1),
    batch[18] or '', batch[19] or ''}
end
