-- Marks an object for removal whose file was deleted or never created: when no live batch reads it,
-- and not before an upload that may be running has ended. ARGV: file id, key, seconds
if redis.call('EXISTS', ns .. 'file:' .. ARGV[1]) == 1 then return 0 end
if redis.call('SCARD', ns .. 'readers:' .. ARGV[1]) > 0 then
  redis.call('HSET', ns .. 'deleted', ARGV[1], ARGV[2])
else
  redis.call('ZADD', ns .. 'garbage', 'NX', int(now + tonumber(ARGV[3])), ARGV[2])
end
return 1
