-- needs: rate, tenant
-- Counts a live call of a tenant until it ends or nobody renews it, and the tokens that it may take.
-- ARGV: tenant, call, milliseconds, its tokens; where nothing else is set: max calls, max tokens, and
-- microseconds in which these may come; where no key has counted the call, because it came by message:
-- max requests, and microseconds in which these may come
-- Returns {'begun', tokens a minute, tokens left, microseconds until all are free}, {'calls', limit, used},
-- or {'tokens' or 'requests', how many a minute, microseconds to wait, microseconds until all are free}.
-- A call that has begun has: the answer to the step before may be lost.
-- In memory only.
redis.set_repl(redis.REPL_NONE)
local calls = ns .. 'live-calls:' .. ARGV[1]
redis.call('ZREMRANGEBYSCORE', calls, '-inf', int(now_ms))
local tokens = limit_of(ARGV[1], 'live_tokens_per_minute', tonumber(ARGV[6]))
local count = ns .. 'calls:live-tokens:' .. ARGV[1]
if redis.call('ZSCORE', calls, ARGV[2]) then
  local _, left, reset = rate_status(count, tokens, tonumber(ARGV[7]), 0)
  return {'begun', tokens, left, reset}
end
local limit, open = limit_of(ARGV[1], 'live_calls', tonumber(ARGV[5])), redis.call('ZCARD', calls)
if open >= limit then return {'calls', limit, open} end
local requests, request_mark = ns .. 'calls:live:' .. ARGV[1], nil
if ARGV[8] then
  local most = limit_of(ARGV[1], 'live_requests_per_minute', tonumber(ARGV[8]))
  local wait, _, reset, mark = rate_status(requests, most, tonumber(ARGV[9]))
  if wait > 0 then return {'requests', most, wait, reset} end
  request_mark = mark
end
-- A call that alone is above the limit has to wait for the whole of it.
local cost = math.min(tonumber(ARGV[4]), tokens)
local wait, left, reset, mark = rate_status(count, tokens, tonumber(ARGV[7]), cost)
if wait > 0 then return {'tokens', tokens, wait, reset} end
count_call(count, mark)
if request_mark then count_call(requests, request_mark) end
redis.set_repl(redis.REPL_NONE)
redis.call('ZADD', calls, int(now_ms + tonumber(ARGV[3])), ARGV[2])
redis.call('PEXPIRE', calls, ARGV[3])
return {'begun', tokens, left, reset}
