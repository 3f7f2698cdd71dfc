-- needs: progress, rebuilding
-- Takes the progress of running batches that is to be published now. If its taker dies, nobody
-- publishes it. ARGV: max batches. Returns batch ids and events in turn.
-- During a rebuild another event may get the same number.
if is_rebuilding() then return {} end
for _, id in ipairs(redis.call('SRANDMEMBER', ns .. 'progress-late', ARGV[1])) do
  if redis.call('HGET', batch_key(id), 'status') == 'in_progress' then
    report_progress(id)
  else
    redis.call('SREM', ns .. 'progress-late', id)
  end
end
-- Earlier events of the batch are published first: until then its progress waits, and is replaced.
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
