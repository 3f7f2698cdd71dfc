-- ARGV: lane, lane job, lease in ms, most slices (at most 100), most rows, least rows
-- Returns 'superseded' when the lane has another job, else the slices, the most urgent first, up to
-- the first one that has more rows than are left; none if fewer than the least rows are ready, or if
-- the lane has failed.
local lane, ready = ARGV[1], lane_key(ARGV[1], 'ready')
if redis.call('HGET', lane_key(lane, 'job'), 'id') ~= ARGV[2] then return 'superseded' end
if redis.call('EXISTS', lane_key(lane, 'failure')) == 1 then return '[]' end
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
  local found = in_line(member)
  if not found then
    redis.call('ZREM', ready, member)
  else
    if found.rows > room then break end
    room = room - found.rows
    granted[#granted + 1] = grant(lane, ARGV[2], ARGV[3], ready, found)
  end
end
if #granted > 0 then ring('dispatcher') end
return cjson.encode(granted)
