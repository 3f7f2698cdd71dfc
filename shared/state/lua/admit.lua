-- Whose key it is, and whether its tenant may call now; a call that may is counted.
-- ARGV: digest of the key, a batch to read on the way ('' for none), then triples: name of a limit,
-- calls, microseconds in which they may come
-- Returns false for a key that does not stand for anybody, else the tenant and, of the limit that
-- leaves least room: its place (from 1), microseconds to wait, calls left, microseconds until all are;
-- then the batch's fields.
local key = ns .. 'key:' .. ARGV[1]
local values = redis.call('HMGET', key, 'tenant', 'revoked_at', 'used_at')
if not values[1] or values[2] then return false end
-- Coarse: each note of it is a write to disk.
if now - tonumber(values[3] or 0) >= 600 then redis.call('HSET', key, 'used_at', now) end
local tightest, marks = nil, {}
for i = 3, #ARGV, 3 do
  local count = ns .. 'calls:' .. ARGV[i] .. ':' .. values[1]
  local wait, left, reset, mark = standing(count, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
  if not tightest or wait > tightest[2] or (wait == tightest[2] and left < tightest[3]) then
    tightest = {i / 3, wait, left, reset}
  end
  marks[count] = mark
end
local batch = {}
if tightest[2] == 0 then
  for count, mark in pairs(marks) do let_in(count, mark) end
  if ARGV[2] ~= '' then batch = redis.call('HGETALL', batch_key(ARGV[2])) end
end
return {values[1], tightest[1], tightest[2], tightest[3], tightest[4], batch}
