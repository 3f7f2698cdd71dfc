-- Keeps the pack that has the batch's input for as long as somebody may need it.
local function keep_pack(id, input_file)
  local values = redis.call('HMGET', batch_key(id), 'key', 'expires_at')
  local pack = string.match(values[1] or '', '^packs/[^/]+/')
  if not pack then return end
  for _, set in ipairs({'garbage', 'doomed'}) do redis.call('ZREM', ns .. set, pack) end
  -- Its inputs go when none of them has a file or a reader any more.
  local ends = tonumber(values[2])
  if input_file then ends = math.max(ends, tonumber(input_file.expires_at or math.huge)) end
  if ends < math.huge then
    redis.call('ZADD', ns .. 'garbage', 'GT', int(ends + ENDED_BATCH_SECONDS), values[1])
  end
end
