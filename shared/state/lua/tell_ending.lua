-- Notes how many rows of a slice of a paused batch are still in the engine.
-- ARGV: batch id, index, epoch, rows
local id, index = ARGV[1], ARGV[2]
if redis.call('HGET', ns .. 'epochs:' .. id, index) ~= ARGV[3]
  or redis.call('SISMEMBER', ns .. 'begun:' .. id, index) == 0 then return 0 end
redis.call('HSET', ns .. 'ending:' .. id, index, ARGV[4])
return 1
