-- needs: upload
-- Gives a completion that began in time the time to finish. ARGV: upload id, seconds after its expiry
-- Returns the status, or 'missing'.
local key = ns .. 'upload:' .. ARGV[1]
local status = upload_status(ARGV[1])
if status == 'pending' then
  local ends = int(tonumber(redis.call('HGET', key, 'expires_at')) + tonumber(ARGV[2]))
  redis.call('HSET', key, 'held_until', ends)
  redis.call('ZADD', ns .. 'uploads', ends, ARGV[1])
end
return status or 'missing'
