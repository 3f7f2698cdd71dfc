-- A page of a tenant's batches in one step: between a cursor's place and what follows it no new batch
-- can come. ARGV: tenant, cursor ('' for none), most batches, microseconds ('' for none)
-- The newest first; with the time those that were changed after it, the last changed first.
-- Returns '1' or '0' for whether there are more, then each batch's fields; no page after an unknown cursor.
local index, first = ns .. (ARGV[4] == '' and 'batches:' or 'changes:') .. ARGV[1], 0
if ARGV[2] ~= '' then
  local rank = redis.call('ZREVRANK', index, ARGV[2])
  if not rank then return {'0'} end
  first = rank + 1
end
local most, least = tonumber(ARGV[3]), tonumber(ARGV[4]) or -1
local ids = {}
for i, value in ipairs(redis.call('ZREVRANGE', index, first, first + most, 'WITHSCORES')) do
  if i % 2 == 1 then ids[#ids + 1] = value
  elseif tonumber(value) <= least then
    ids[#ids] = nil
    break
  end
end
local found = {#ids > most and '1' or '0'}
for i = 1, math.min(#ids, most) do
  found[#found + 1] = redis.call('HGETALL', batch_key(ids[i]))
end
return found
