-- needs: rebuilding
-- Takes, renews or releases a named lease. ARGV: name, holder, milliseconds (0 to release it)
-- Returns the fencing number, or 0.
local key = ns .. 'lease:' .. ARGV[1]
local holder = redis.call('GET', key)
if holder and holder ~= ARGV[2] then return 0 end
if tonumber(ARGV[3]) == 0 then
  if holder then redis.call('DEL', key) end
  return 0
end
-- Nobody leads during a rebuild.
if ARGV[1] == 'dispatcher' and is_rebuilding() then return 0 end
redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
if holder then return tonumber(redis.call('GET', key .. ':epoch')) end
return redis.call('INCR', key .. ':epoch')
