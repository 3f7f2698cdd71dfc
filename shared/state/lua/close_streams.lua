-- Counts event streams no longer. ARGV: pairs: tenant, stream
redis.set_repl(redis.REPL_NONE)
for i = 1, #ARGV, 2 do redis.call('ZREM', ns .. 'streams:' .. ARGV[i], ARGV[i + 1]) end
return 1
