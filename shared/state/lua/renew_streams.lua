-- Renews open event streams, in memory only like their opening.
-- ARGV: milliseconds, then pairs: tenant, stream
redis.set_repl(redis.REPL_NONE)
for i = 2, #ARGV, 2 do
  local key = ns .. 'streams:' .. ARGV[i]
  redis.call('ZADD', key, int(now_ms + tonumber(ARGV[1])), ARGV[i + 1])
  redis.call('PEXPIRE', key, ARGV[1])
end
return 1
