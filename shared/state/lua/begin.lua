-- needs: give_back
-- Notes that claimed slices are about to go to the engine. Those of batches that must not run are given
-- back instead.
-- ARGV: lane, then triples of batch, index and epoch
-- Returns the positions (from 1) of the slices that must not run.
local lane, refused = ARGV[1], {}

local function may_run(id, index, epoch)
  if redis.call('HGET', ns .. 'epochs:' .. id, index) ~= epoch
    or redis.call('SISMEMBER', ns .. 'inflight:' .. id, index) == 0 then return false end
  local batch = redis.call('HMGET', batch_key(id), 'status', 'paused')
  if batch[1] == 'in_progress' and not batch[2] then return true end
  give_back(lane, id, index, 'paused')
  return false
end

for i = 2, #ARGV, 3 do
  if may_run(ARGV[i], ARGV[i + 1], ARGV[i + 2]) then
    redis.call('SADD', ns .. 'begun:' .. ARGV[i], ARGV[i + 1])
  else
    refused[#refused + 1] = (i + 1) / 3
  end
end
return refused
