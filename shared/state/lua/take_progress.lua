-- The progress of running batches that is to be told now; who takes it tells it, or nobody does.
-- ARGV: how many at most. Returns batch ids and events in turn.
-- Its number may have been that of another event.
if is_rebuilding() then return {} end
for _, id in ipairs(redis.call('SRANDMEMBER', ns .. 'progress-late', ARGV[1])) do
  if redis.call('HGET', batch_key(id), 'status') == 'in_progress' then
    progress(id)
  else
    redis.call('SREM', ns .. 'progress-late', id)
  end
end
-- What was announced of the batch before has to be out before: until then it waits, and is replaced.
local oldest = redis.call('XRANGE', ns .. 'outbox:events', '-', '+', 'COUNT', 1)[1]
local oldest_ms = oldest and tonumber(string.match(oldest[1], '^%d+'))
local found, taken = redis.call('HRANDFIELD', ns .. 'progress', ARGV[1], 'WITHVALUES'), {}
redis.set_repl(redis.REPL_NONE)
for i = 1, #found, 2 do
  local at_ms = tonumber(string.match(found[i + 1], '^%d+ (%d+) '))
  if not oldest_ms or at_ms < oldest_ms then
    redis.call('HDEL', ns .. 'progress', found[i])
    taken[#taken + 1] = found[i]
    taken[#taken + 1] = found[i + 1]
  end
end
return taken
