-- needs: upload, file, stored
-- Ends a pending upload.
-- ARGV: upload id, 'completed', 'cancelled' or 'expired', file (JSON or ''), fingerprint of its parts
-- Returns the upload's status now, 'missing', or 'swept' when the file's objects are gone.
local id, target = ARGV[1], ARGV[2]
local key, status = ns .. 'upload:' .. id, upload_status(id)
if not status then
  redis.call('ZREM', ns .. 'uploads', id)
  return 'missing'
end
if redis.call('HGET', key, 'status') ~= 'pending' then
  redis.call('ZREM', ns .. 'uploads', id)
  return status
end
-- A pending upload whose time has passed can only expire, and no other can.
if (target == 'expired') ~= (status == 'expired') then return status end
if target == 'completed' then
  local file = cjson.decode(ARGV[3])
  if not keep_objects(file) then return 'swept' end
  write_file(file)
  redis.call('HSET', key, 'file_id', file.id, 'fingerprint', ARGV[4])
end
redis.call('HSET', key, 'status', target)
-- A file has each of its parts once, so the tenant has no more than before.
local values = redis.call('HMGET', key, 'tenant', 'stored')
add_stored(values[1], -tonumber(values[2] or 0))
redis.call('ZREM', ns .. 'uploads', id)
redis.call('UNLINK', ns .. 'upload_parts:' .. id)
redis.call('ZADD', ns .. 'garbage', int(now), 'uploads/' .. id .. '/')
redis.call('EXPIRE', key, ENDED_UPLOAD_SECONDS)
return target
