-- Gives a claimed slice back unrun. ARGV: lane, batch id, index, epoch, strikes to add, reason, what
-- is known of the rows in doubt ('' for nothing new), and of a death to be counted the number of those
-- in a row at which the lane has failed (0 for one that is not counted), '1' if it gave a result before,
-- why its engine cannot start ('' where it can)
-- Returns 1, or 0 when the claim is another's by now.
local lane, id, index = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', ns .. 'epochs:' .. id, index) ~= ARGV[4]
  or redis.call('SISMEMBER', ns .. 'inflight:' .. id, index) == 0 then return 0 end
-- Of an ended batch nothing may come back that would stay for ever.
if not FINAL[redis.call('HGET', batch_key(id), 'status')] then
  if tonumber(ARGV[5]) > 0 then redis.call('HINCRBY', ns .. 'strikes:' .. id, index, ARGV[5]) end
  if ARGV[7] ~= '' then redis.call('HSET', ns .. 'doubts:' .. id, index, ARGV[7]) end
  local most = tonumber(ARGV[8])
  if most > 0 then
    redis.call('HINCRBY', batch_key(id), 'engine_deaths', 1)
    if ARGV[9] == '1' then redis.call('HDEL', lane_key(lane, 'job'), 'deaths') end
    local deaths = redis.call('HINCRBY', lane_key(lane, 'job'), 'deaths', 1)
    if deaths >= most then
      fail_engine(lane, 'The engine died ' .. deaths .. ' times in a row, and gave no result between.')
    end
  end
end
if ARGV[10] ~= '' then fail_engine(lane, ARGV[10]) end
give_back(lane, id, index, ARGV[6])
return 1
