-- needs: claim
-- Claims slices in which an engine died. ARGV: lane, lane job, lease in ms, max rows
-- Returns 'superseded' when the lane has another job. Otherwise (JSON) the suspect that has waited
-- longest, of any size, and those after it as long as rows are left; none if the lane has failed.
local lane, suspects = ARGV[1], lane_key(ARGV[1], 'suspects')
if redis.call('HGET', lane_key(lane, 'job'), 'id') ~= ARGV[2] then return 'superseded' end
if redis.call('EXISTS', lane_key(lane, 'failure')) == 1 then return '[]' end
local rows_free, granted = tonumber(ARGV[4]), {}
for _, member in ipairs(redis.call('ZRANGE', suspects, 0, MAX_CALL_ENTRIES - 1)) do
  local found = find_runnable(member)
  if not found then
    redis.call('ZREM', suspects, member)
  else
    if #granted > 0 and found.rows > rows_free then break end
    rows_free = rows_free - found.rows
    granted[#granted + 1] = grant_claim(lane, ARGV[2], ARGV[3], suspects, found, true)
  end
end
if #granted > 0 then ring('dispatcher') end
return cjson.encode(granted)
