-- Gives a claimed slice back unrun. ARGV: lane, batch id, index, epoch, strikes to add, reason
-- Returns 1, or 0 when the claim is another's by now.
if redis.call('HGET', ns .. 'epochs:' .. ARGV[2], ARGV[3]) ~= ARGV[4]
  or redis.call('SISMEMBER', ns .. 'inflight:' .. ARGV[2], ARGV[3]) == 0 then return 0 end
-- What is written of a batch after its end would have no end itself.
local has_ended = FINAL[redis.call('HGET', batch_key(ARGV[2]), 'status')]
if tonumber(ARGV[5]) > 0 and not has_ended then
  redis.call('HINCRBY', ns .. 'strikes:' .. ARGV[2], ARGV[3], ARGV[5])
end
give_back(ARGV[1], ARGV[2], ARGV[3], ARGV[6])
return 1
