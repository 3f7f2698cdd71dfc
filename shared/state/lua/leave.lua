-- needs: lifecycle
-- Removes the record of an ended batch, which S3 has by now. Its places in the lists stay.
-- ARGV: batch id, the edition in S3, the record as S3 has it (JSON)
-- Returns 'left'; 'gone' without a record; 'live'; 'busy' while slices are claimed or its pipeline
-- runs; or 'changed' if the record is not the one in S3.
local id, edition, saved = ARGV[1], ARGV[2], cjson.decode(ARGV[3])
local key, leaving = batch_key(id), ns .. 'leaving'
local flat, record = redis.call('HGETALL', key), {}
for i = 1, #flat, 2 do record[flat[i]] = flat[i + 1] end

local function later(why)
  redis.call('ZADD', leaving, 'XX', now, id)
  return why
end

if not FINAL[record.status] then
  redis.call('ZREM', leaving, id)
  return #flat == 0 and 'gone' or 'live'
end
if redis.call('SCARD', ns .. 'inflight:' .. id) > 0 then return later('busy') end
if record.pipeline and redis.call('ZSCORE', ns .. 'pipelines-live', record.pipeline) then
  return later('busy')
end
for field, value in pairs(record) do
  if saved[field] ~= value then return later('changed') end
end
for field in pairs(saved) do
  if record[field] == nil then return later('changed') end
end
redis.call('UNLINK', key, ns .. 'events:' .. id, ns .. 'pace:' .. id)
for _, what in ipairs({'strikes:', 'jobs:', 'reasons:', 'doubts:', 'begun:', 'ending:', 'kept:'}) do
  redis.call('UNLINK', ns .. what .. id)
end
if tonumber(edition) > 0 then redis.call('HSET', ns .. 'editions', id, edition) end
redis.call('ZREM', leaving, id)
return 'left'
