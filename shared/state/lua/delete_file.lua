-- The object itself goes once no live batch reads it. ARGV: tenant, file id. Returns 1 or 0.
local key = ns .. 'file:' .. ARGV[2]
local values = redis.call('HMGET', key, 'tenant', 'key', 'owned')
if values[1] ~= ARGV[1] then return 0 end
redis.call('DEL', key)
redis.call('ZREM', ns .. 'files:' .. ARGV[1], ARGV[2])
if values[3] == '1' then
  if redis.call('SCARD', ns .. 'readers:' .. ARGV[2]) == 0 then
    redis.call('ZADD', ns .. 'garbage', now, values[2])
  else
    redis.call('HSET', ns .. 'deleted', ARGV[2], values[2])
  end
end
return 1
