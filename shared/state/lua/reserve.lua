-- Makes objects garbage in advance, unless a file keeps them before. ARGV: seconds, keys
for i = 2, #ARGV do
  redis.call('ZADD', ns .. 'garbage', int(now + tonumber(ARGV[1])), ARGV[i])
end
return #ARGV - 1
