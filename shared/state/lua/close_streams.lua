-- Counts event streams, downloads or live calls no longer. ARGV: kind, then pairs: tenant, stream
redis.set_repl(redis.REPL_NONE)
for i = 2, #ARGV, 2 do redis.call('ZREM', ns .. ARGV[1] .. ':' .. ARGV[i], ARGV[i + 1]) end
return 1
