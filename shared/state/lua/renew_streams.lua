-- Renews open event streams, downloads or live calls, in memory only like their opening.
-- ARGV: kind, milliseconds, then pairs: tenant, stream
redis.set_repl(redis.REPL_NONE)
for i = 3, #ARGV, 2 do
  local key = ns .. ARGV[1] .. ':' .. ARGV[i]
  redis.call('ZADD', key, int(now_ms + tonumber(ARGV[2])), ARGV[i + 1])
  redis.call('PEXPIRE', key, ARGV[2])
end
return 1
