-- Scores of listings: microseconds, and unique within an index, so that every page and every search
-- can start after one number.

-- The score for something that happens now.
local function next_score(index)
  local last = tonumber(redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')[2] or 0)
  return int(math.max(now_us, last + 1))
end

-- The score for something that happened in that second, long ago.
local function past_score(index, seconds, id)
  local score = seconds * 1000000 + tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) % 1000000
  while redis.call('ZCOUNT', index, int(score), int(score)) > 0 do score = score + 1 end
  return int(score)
end
