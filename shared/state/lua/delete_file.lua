-- needs: stored
-- Deletes a file's record. Its object goes when no live batch reads it. ARGV: tenant, file id
-- Returns 1, or 0 if the tenant has no such file.
local key, index = ns .. 'file:' .. ARGV[2], ns .. 'files:' .. ARGV[1]
local values = redis.call('HMGET', key, 'tenant', 'key', 'owned', 'bytes')
if values[1] ~= ARGV[1] then return 0 end
redis.call('DEL', key)
-- A listing whose cursor is this file continues from its place.
local score = redis.call('ZSCORE', index, ARGV[2])
if score then
  redis.call('SET', ns .. 'gone:' .. ARGV[2], score .. ' ' .. ARGV[1], 'EX', DELETED_FILE_SECONDS)
end
redis.call('ZREM', index, ARGV[2])
redis.call('ZREM', ns .. 'expiring', ARGV[2])
redis.call('SREM', ns .. 'adapters:' .. ARGV[1], ARGV[2])
add_stored(ARGV[1], -counted_bytes(values[3], values[2], values[4]))
if values[3] == '1' then
  if redis.call('SCARD', ns .. 'readers:' .. ARGV[2]) == 0 then
    redis.call('ZADD', ns .. 'garbage', now, values[2])
  else
    redis.call('HSET', ns .. 'deleted', ARGV[2], values[2])
  end
end
return 1
