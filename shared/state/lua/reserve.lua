-- Reserves objects: they are swept unless a file keeps them first. ARGV: seconds, id of the file that
-- is to keep them ('' if there are several), keys
-- Returns 1, or 0 if that file exists: the objects belong to it.
if ARGV[2] ~= '' and redis.call('EXISTS', ns .. 'file:' .. ARGV[2]) == 1 then return 0 end
for i = 3, #ARGV do
  redis.call('ZADD', ns .. 'garbage', int(now + tonumber(ARGV[1])), ARGV[i])
end
return 1
