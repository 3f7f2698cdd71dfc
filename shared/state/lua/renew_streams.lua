-- Renews open event streams, downloads or live calls, in memory only like their opening.
-- ARGV: kind, milliseconds, then pairs: tenant, stream
redis.set_repl(redis.REPL_NONE)
local open, until_ms = {}, int(now_ms + tonumber(ARGV[2]))
for i = 3, #ARGV, 2 do
  local key = ns .. ARGV[1] .. ':' .. ARGV[i]
  open[key] = open[key] or {}
  table.insert(open[key], until_ms)
  table.insert(open[key], ARGV[i + 1])
end
-- Lua hands on some thousand arguments at most.
for key, pairs_ in pairs(open) do
  for first = 1, #pairs_, 1000 do
    redis.call('ZADD', key, unpack(pairs_, first, math.min(first + 1000 - 1, #pairs_)))
  end
  redis.call('PEXPIRE', key, ARGV[2])
end
return 1
