-- Claims slices in which an engine died. ARGV: lane, lane job, lease in ms, most rows
-- Returns 'superseded' when the lane has another job, else the one that has waited longest and those
-- behind it for which there are rows left; none if the lane has failed.
local lane, suspects = ARGV[1], lane_key(ARGV[1], 'suspects')
if redis.call('HGET', lane_key(lane, 'job'), 'id') ~= ARGV[2] then return 'superseded' end
if redis.call('EXISTS', lane_key(lane, 'failure')) == 1 then return '[]' end
local room, granted = tonumber(ARGV[4]), {}
for _, member in ipairs(redis.call('ZRANGE', suspects, 0, 99)) do
  local found = in_line(member)
  if not found then
    redis.call('ZREM', suspects, member)
  else
    if #granted > 0 and found.rows > room then break end
    room = room - found.rows
    granted[#granted + 1] = grant(lane, ARGV[2], ARGV[3], suspects, found)
  end
end
if #granted > 0 then ring('dispatcher') end
return cjson.encode(granted)
