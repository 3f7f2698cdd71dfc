-- needs: lifecycle
-- Forgets batches that have ended, as if they had never existed. ARGV: batch ids
for _, id in ipairs(ARGV) do
  local values = redis.call('HMGET', batch_key(id), 'status', 'tenant')
  if values[1] and FINAL[values[1]] then
    for _, index in ipairs({'batches:', 'changes:'}) do redis.call('ZREM', ns .. index .. values[2], id) end
    redis.call('UNLINK', batch_key(id), ns .. 'events:' .. id, ns .. 'pace:' .. id)
  end
  redis.call('ZREM', ns .. 'endings', id)
  redis.call('ZREM', ns .. 'leaving', id)
  redis.call('HDEL', ns .. 'editions', id)
end
return 1
