-- Bytes that a tenant has in S3: of its files, and of the parts of its pending uploads. Objects of its
-- own that a batch only reads do not count.

local function stored_bytes(tenant)
  return math.max(0, tonumber(redis.call('HGET', ns .. 'stored', tenant) or 0))
end

local function add_stored(tenant, bytes)
  if redis.call('HINCRBY', ns .. 'stored', tenant, int(bytes)) == 0 then
    redis.call('HDEL', ns .. 'stored', tenant)
  end
end

-- The bytes of a file that count. What came in a message lies in a pack, which no file owns.
local function counted_bytes(owned, key, bytes)
  if tostring(owned) == '1' or string.match(key, '^packs/') then return tonumber(bytes) end
  return 0
end

-- Whether so many more bytes would exceed the limit ('' for none).
local function is_too_much(tenant, bytes, limit)
  return limit ~= '' and stored_bytes(tenant) + bytes > tonumber(limit)
end
