-- needs: scores, stored

-- Keeps a new file's reserved objects, which would otherwise be swept. Returns false if the
-- reservation has ended.
local function keep_objects(file)
  redis.call('ZREM', ns .. 'garbage', file.key .. '.json')
  local is_reserved = redis.call('ZREM', ns .. 'garbage', file.key) == 1
  return is_reserved or redis.call('EXISTS', ns .. 'file:' .. file.id) == 1
end

-- Makes the file visible, once. One that is older than its record is listed by its own time.
local function write_file(file, is_old)
  local fields = {}
  for name, value in pairs(file) do
    fields[#fields + 1] = name
    fields[#fields + 1] = tostring(value)
  end
  local key = ns .. 'file:' .. file.id
  if redis.call('EXISTS', key) == 1 then return end
  redis.call('HSET', key, unpack(fields))
  local index = ns .. 'files:' .. file.tenant
  local score = is_old and past_score(index, file.created_at, file.id) or next_score(index)
  redis.call('ZADD', index, score, file.id)
  if file.expires_at then redis.call('ZADD', ns .. 'expiring', file.expires_at, file.id) end
  if file.purpose == 'adapter' then redis.call('SADD', ns .. 'adapters:' .. file.tenant, file.id) end
  add_stored(file.tenant, counted_bytes(file.owned, file.key, file.bytes))
end
