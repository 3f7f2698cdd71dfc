-- Extends claims. ARGV: lane, lease in ms, then triples of batch, index and epoch
-- Returns the positions (from 1) of the claims that are lost, or whose batch no longer runs.
local claims, lease_ms, lost = lane_key(ARGV[1], 'claims'), tonumber(ARGV[2]), {}
for i = 3, #ARGV, 3 do
  local id, index, epoch = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local member, is_kept = id .. ':' .. index, false
  local current = redis.call('HGET', ns .. 'epochs:' .. id, index)
  if current == epoch and redis.call('ZSCORE', claims, member) then
    redis.call('ZADD', claims, int(now_ms + lease_ms), member)
    is_kept = redis.call('HGET', batch_key(id), 'status') == 'in_progress'
  end
  if not is_kept then lost[#lost + 1] = i / 3 end
end
return lost
