-- needs: rate, tenant
-- Finds the tenant of an API key, and whether it may call now; a call that may is counted.
-- ARGV: digest of the key, a batch to read in the same round trip ('' for none), then fours: name of a
-- rate, of the tenant's limit, calls where no limit is set, microseconds in which they may come
-- Returns false for a key that is unknown or revoked, and {when} for one that has expired. Otherwise
-- the tenant; the key's id and scopes; the tightest rate as its position (from 1), its calls,
-- microseconds to wait, calls left and microseconds until all are free; and the batch's fields as one
-- text of JSON, empty if there is none.
local key = ns .. 'key:' .. ARGV[1]
local values = redis.call('HMGET', key, 'tenant', 'revoked_at', 'used_day', 'expires_at', 'scopes')
local tenant, today = values[1], int(math.floor(now / DAY_SECONDS))
if not tenant or values[2] then return false end
if values[4] and now >= tonumber(values[4]) then return {values[4]} end
-- By the day, because each update is a write to disk.
if values[3] ~= today then redis.call('HSET', key, 'used_day', today) end
local tightest, marks = nil, {}
for i = 3, #ARGV, 4 do
  local count = ns .. 'calls:' .. ARGV[i] .. ':' .. tenant
  local calls = limit_of(tenant, ARGV[i + 1], tonumber(ARGV[i + 2]))
  local wait, left, reset, mark = rate_status(count, calls, tonumber(ARGV[i + 3]))
  if not tightest or wait > tightest[3] or (wait == tightest[3] and left < tightest[4]) then
    tightest = {(i + 1) / 4, calls, wait, left, reset}
  end
  marks[count] = mark
end
local batch = ''
if tightest[3] == 0 then
  for count, mark in pairs(marks) do count_call(count, mark) end
  local fields = ARGV[2] ~= '' and redis.call('HGETALL', batch_key(ARGV[2])) or {}
  if #fields > 0 then batch = cjson.encode(fields) end
end
return {tenant, values[5] or '', tightest, batch}
