-- Makes objects garbage in advance, unless a file keeps them before. ARGV: seconds, id of the file that
-- is to keep them ('' if there are several), keys
-- Returns 0 where that file is there: the objects are its own.
if ARGV[2] ~= '' and redis.call('EXISTS', ns .. 'file:' .. ARGV[2]) == 1 then return 0 end
for i = 3, #ARGV do
  redis.call('ZADD', ns .. 'garbage', int(now + tonumber(ARGV[1])), ARGV[i])
end
return 1
