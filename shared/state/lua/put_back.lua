-- needs: give_back
-- Gives claimed slices back that have not begun, so that they run another way. Their claims are over:
-- whoever begins one of them later begins it in vain.
-- ARGV: lane, reason, then triples of batch, index and epoch
-- Returns the positions (from 1) of the slices that are back, also of those that were before: the answer
-- to an earlier call may be lost.
local lane, reason, returned = ARGV[1], ARGV[2], {}

-- Whether the claim has ended, and not with a part.
local function is_over(id, index, epoch)
  local current = redis.call('HGET', ns .. 'epochs:' .. id, index)
  if not current or tonumber(current) > tonumber(epoch) then return true end
  return redis.call('SISMEMBER', ns .. 'inflight:' .. id, index) == 0
    and redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 0
end

for i = 3, #ARGV, 3 do
  local id, index, epoch = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local is_back = is_over(id, index, epoch)
  if not is_back and redis.call('SISMEMBER', ns .. 'inflight:' .. id, index) == 1
    and redis.call('SISMEMBER', ns .. 'begun:' .. id, index) == 0 then
    give_back(lane, id, index, reason)
    is_back = true
  end
  if is_back then returned[#returned + 1] = i / 3 end
end
return returned
