-- Reads a page of a tenant's batches in one step: no new batch can come between the place of a cursor
-- and what follows it. The newest first; with a time, those changed after it, the last changed first.
-- ARGV: tenant, cursor ('' for none), max batches, microseconds ('' for none)
-- Returns '1' or '0' for whether there are more, then each batch's fields as one text of JSON: of one
-- that has left for S3, only its id. Nothing follows an unknown cursor.
local index, first = ns .. (ARGV[4] == '' and 'batches:' or 'changes:') .. ARGV[1], 0
if ARGV[2] ~= '' then
  local rank = redis.call('ZREVRANK', index, ARGV[2])
  if not rank then return {'0'} end
  first = rank + 1
end
local max_batches, changed_after = tonumber(ARGV[3]), tonumber(ARGV[4]) or -1
local ids = {}
for i, value in ipairs(redis.call('ZREVRANGE', index, first, first + max_batches, 'WITHSCORES')) do
  if i % 2 == 1 then ids[#ids + 1] = value
  elseif tonumber(value) <= changed_after then
    ids[#ids] = nil
    break
  end
end
local found = {#ids > max_batches and '1' or '0'}
for i = 1, math.min(#ids, max_batches) do
  local fields = redis.call('HGETALL', batch_key(ids[i]))
  found[#found + 1] = cjson.encode(#fields > 0 and fields or {'id', ids[i]})
end
return found
