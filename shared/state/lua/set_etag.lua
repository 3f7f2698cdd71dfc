-- Notes that a file's object was written again. ARGV: file id, ETag. Returns 1, or 0 if it is gone.
local key = ns .. 'file:' .. ARGV[1]
if redis.call('EXISTS', key) == 0 then return 0 end
redis.call('HSET', key, 'etag', ARGV[2])
return 1
