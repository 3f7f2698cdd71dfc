-- Takes objects that are to be removed now; from here on no file can keep them. ARGV: max objects
local due = redis.call('ZRANGEBYSCORE', ns .. 'garbage', '-inf', int(now), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  redis.call('ZREM', ns .. 'garbage', member)
  redis.call('ZADD', ns .. 'doomed', int(now), member)
end
return redis.call('ZRANGE', ns .. 'doomed', 0, tonumber(ARGV[1]) - 1)
