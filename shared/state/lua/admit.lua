-- needs: rate
-- Finds the tenant of an API key, and whether it may call now; a call that may is counted.
-- ARGV: digest of the key, a batch to read in the same round trip ('' for none), then triples: name of
-- a limit, calls, microseconds in which they may come
-- Returns false for a key that is unknown or revoked. Otherwise the tenant; the tightest limit as its
-- position (from 1), microseconds to wait, calls left and microseconds until all are free; and the
-- batch's fields.
local key = ns .. 'key:' .. ARGV[1]
local values = redis.call('HMGET', key, 'tenant', 'revoked_at', 'used_at')
local tenant = values[1]
if not tenant or values[2] then return false end
-- Coarse, because each update is a write to disk.
if now - tonumber(values[3] or 0) >= KEY_USE_SECONDS then redis.call('HSET', key, 'used_at', now) end
local tightest, marks = nil, {}
for i = 3, #ARGV, 3 do
  local count = ns .. 'calls:' .. ARGV[i] .. ':' .. tenant
  local wait, left, reset, mark = rate_status(count, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
  if not tightest or wait > tightest[2] or (wait == tightest[2] and left < tightest[3]) then
    tightest = {i / 3, wait, left, reset}
  end
  marks[count] = mark
end
local batch = {}
if tightest[2] == 0 then
  for count, mark in pairs(marks) do count_call(count, mark) end
  if ARGV[2] ~= '' then batch = redis.call('HGETALL', batch_key(ARGV[2])) end
end
return {tenant, tightest[1], tightest[2], tightest[3], tightest[4], batch}
