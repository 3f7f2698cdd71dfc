-- Marks objects in S3 for removal: a prefix that nobody needs after a batch's end ('' for none), and
-- objects and prefixes that nobody needs a day later.
local function discard(prefix, later)
  if prefix ~= '' then
    -- And again later, for a part written by a process that was frozen meanwhile and then died.
    redis.call('ZADD', ns .. 'garbage', now, prefix, int(now + ENDED_BATCH_SECONDS), prefix .. '/')
  end
  for _, member in ipairs(later) do
    redis.call('ZADD', ns .. 'garbage', int(now + ENDED_BATCH_SECONDS), member)
  end
end
