-- A page of a tenant's batches, newest first, in one step: between a cursor's place and what follows
-- it no new batch can come. ARGV: tenant, cursor ('' for none), most batches
-- Returns '1' or '0' for whether there are more, then each batch's fields; no page after an unknown cursor.
local index, first = ns .. 'batches:' .. ARGV[1], 0
if ARGV[2] ~= '' then
  local rank = redis.call('ZREVRANK', index, ARGV[2])
  if not rank then return {'0'} end
  first = rank + 1
end
local most = tonumber(ARGV[3])
local ids = redis.call('ZREVRANGE', index, first, first + most)
local found = {#ids > most and '1' or '0'}
for i = 1, math.min(#ids, most) do
  found[#found + 1] = redis.call('HGETALL', batch_key(ids[i]))
end
return found
