-- ARGV: lane, lease in ms, then at most 100 triples batch, index, epoch
-- Returns the positions (from 1) of the claims that are lost, or whose batch no longer runs.
local claims, lost = lane_key(ARGV[1], 'claims'), {}
for i = 3, #ARGV, 3 do
  local member = ARGV[i] .. ':' .. ARGV[i + 1]
  local current = redis.call('HGET', ns .. 'epochs:' .. ARGV[i], ARGV[i + 1])
  if current == ARGV[i + 2] and redis.call('ZSCORE', claims, member) then
    redis.call('ZADD', claims, int(now_ms + tonumber(ARGV[2])), member)
    if redis.call('HGET', batch_key(ARGV[i]), 'status') ~= 'in_progress' then
      lost[#lost + 1] = (i - 3) / 3 + 1
    end
  else
    lost[#lost + 1] = (i - 3) / 3 + 1
  end
end
return lost
