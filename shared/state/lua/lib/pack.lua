-- Takes the pack with this key off the list of what is swept. Returns whether it is one.
local function spare_pack(key)
  local pack = string.match(key or '', '^packs/[^/]+/')
  if not pack then return false end
  for _, set in ipairs({'garbage', 'doomed'}) do redis.call('ZREM', ns .. set, pack) end
  return true
end

-- Keeps the pack that has the batch's manifest, and the one that has its input for as long as somebody
-- may need that.
local function keep_pack(id, input_file)
  local values = redis.call('HMGET', batch_key(id), 'key', 'expires_at', 'pack')
  spare_pack(values[3])
  if not spare_pack(values[1]) then return end
  -- Its inputs go when none of them has a file or a reader any more.
  local ends = tonumber(values[2])
  if input_file then ends = math.max(ends, tonumber(input_file.expires_at or math.huge)) end
  if ends < math.huge then
    redis.call('ZADD', ns .. 'garbage', 'GT', int(ends + ENDED_BATCH_SECONDS), values[1])
  end
end
