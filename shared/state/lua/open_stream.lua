-- Counts an event stream or a download among those that a tenant has open, until it is closed or nobody
-- renews it. ARGV: kind, tenant, stream, max streams, milliseconds
-- Returns {1 if it may be opened or else 0, how many are open}. One that is open may be opened: the answer
-- to the step before may be lost.
local key = ns .. ARGV[1] .. ':' .. ARGV[2]
redis.set_repl(redis.REPL_NONE)
redis.call('ZREMRANGEBYSCORE', key, '-inf', int(now_ms))
local open = redis.call('ZCARD', key)
if redis.call('ZSCORE', key, ARGV[3]) then return {1, open} end
if open >= tonumber(ARGV[4]) then return {0, open} end
redis.call('ZADD', key, int(now_ms + tonumber(ARGV[5])), ARGV[3])
redis.call('PEXPIRE', key, ARGV[5])
return {1, open + 1}
