-- ARGV: lane, lane job, lease in ms, most slices (at most 100), most rows, least rows
-- Returns 'superseded' when the lane has another job, else the slices, the most urgent first, up to
-- the first one that has more rows than are left; none if fewer than the least rows are ready.
local lane, ready = ARGV[1], lane_key(ARGV[1], 'ready')
if redis.call('HGET', lane_key(lane, 'job'), 'id') ~= ARGV[2] then return 'superseded' end
local room, granted, least = tonumber(ARGV[5]), {}, tonumber(ARGV[6])
for _, member in ipairs(least > 0 and redis.call('ZRANGE', ready, 0, 99) or {}) do
  local id, index = string.match(member, '^(.*):(%d+)$')
  local batch = redis.call('HMGET', batch_key(id), 'status', 'plan')
  if batch[1] == 'in_progress' then
    least = least - cjson.decode(redis.call('HGET', ns .. 'plan:' .. id .. ':' .. batch[2], index))[4]
    if least <= 0 then break end
  else
    redis.call('ZREM', ready, member)
  end
end
if least > 0 then return '[]' end
-- What is ready of a batch that has ended is dropped on the way, and counts for nothing.
for _ = 1, 200 do
  if #granted == tonumber(ARGV[4]) then break end
  local member = redis.call('ZRANGE', ready, 0, 0)[1]
  if not member then break end
  local id, index = string.match(member, '^(.*):(%d+)$')
  local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'bucket', 'key', 'etag',
    'endpoint', 'tenant', 'version_id')
  local slice = batch[2] and redis.call('HGET', ns .. 'plan:' .. id .. ':' .. batch[2], index)
  if batch[1] ~= 'in_progress' or not slice
    or redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 1 then
    redis.call('ZREM', ready, member)
  else
    local rows = cjson.decode(slice)[4]
    if rows > room then break end
    room = room - rows
    redis.call('ZREM', ready, member)
    redis.call('ZADD', lane_key(lane, 'claims'), int(now_ms + tonumber(ARGV[3])), member)
    redis.call('SADD', ns .. 'inflight:' .. id, index)
    redis.call('HSET', ns .. 'jobs:' .. id, index, ARGV[2])
    redis.call('HINCRBY', lane_key(lane, 'served'), batch[7], cjson.decode(slice)[5])
    local epoch = redis.call('HINCRBY', ns .. 'epochs:' .. id, index, 1)
    local strikes = redis.call('HGET', ns .. 'strikes:' .. id, index) or 0
    granted[#granted + 1] = {id, tonumber(index), epoch, tonumber(strikes), slice,
      batch[3], batch[4], batch[5], batch[6], batch[7], batch[8] or ''}
  end
end
if #granted > 0 then ring('dispatcher') end
return cjson.encode(granted)
