-- Writes the record of an ended batch again that had left for S3.
-- ARGV: batch id, the edition that was read, and a JSON object: `fields` (field and value pairs),
-- `seconds` (for which the rest is kept), and `events` and `pace` if that is not over
-- Returns 'back', 'here' if there is a record, 'unknown' if the batch was forgotten, or 'stale' if
-- it has left under another edition.
local id, key, stored = ARGV[1], batch_key(ARGV[1]), cjson.decode(ARGV[3])
if redis.call('EXISTS', key) == 1 then return 'here' end
if not redis.call('ZSCORE', ns .. 'endings', id) then return 'unknown' end
if (redis.call('HGET', ns .. 'editions', id) or '0') ~= ARGV[2] then return 'stale' end
redis.call('HSET', key, unpack(stored.fields))
for _, what in ipairs({'events', 'pace'}) do
  local list, texts = ns .. what .. ':' .. id, stored[what] or {}
  if #texts > 0 then
    redis.call('RPUSH', list, unpack(texts))
    redis.call('EXPIRE', list, int(stored.seconds))
  end
end
redis.call('ZADD', ns .. 'leaving', now, id)
return 'back'
