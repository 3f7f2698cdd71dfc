-- needs: lifecycle, deaths, engine, give_back
-- Gives a claimed slice back unrun.
-- ARGV: lane, batch id, index, epoch, strikes to add, reason, strike ranges of its rows and the
-- engine's last words (JSON; '' for nothing new), at how many deaths in a row the lane fails (0 if no
-- death is to be counted), '1' if the engine had given results, why the engine cannot start ('' if it
-- can), the part with the rows that were answered (JSON; '' for nothing new), '1' if only rows of the
-- batch's tenant were in the engine when it died
-- Returns 1, or 0 when the claim already belonged to another job.
local lane, id, index, epoch, strikes, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local strike_ranges, max_deaths, had_results = ARGV[7], tonumber(ARGV[8]), ARGV[9] == '1'
local engine_failure, kept = ARGV[10], ARGV[11]

local function count_death()
  local job = lane_key(lane, 'job')
  redis.call('HINCRBY', batch_key(id), 'engine_deaths', 1)
  if ARGV[12] == '1' then count_tenants_death(redis.call('HGET', batch_key(id), 'tenant')) end
  if had_results then redis.call('HDEL', job, 'deaths') end
  local deaths = redis.call('HINCRBY', job, 'deaths', 1)
  if deaths >= max_deaths then
    record_engine_failure(lane,
      'The engine died ' .. deaths .. ' times in a row, and gave no result between.')
  end
end

if redis.call('HGET', ns .. 'epochs:' .. id, index) ~= epoch then return 0 end
-- Nothing is written about a batch that has ended: it would stay for ever.
local status = redis.call('HGET', batch_key(id), 'status')
local has_ended = not status or FINAL[status]
local is_claimed = redis.call('SISMEMBER', ns .. 'inflight:' .. id, index) == 1
-- Also if the claim was taken back meanwhile: the next one begins with these rows. The parts of a
-- closing batch are frozen by then: its commit may be in S3.
if kept ~= '' and (is_claimed or status == 'in_progress') and not has_ended
  and redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 0 then
  redis.call('HSET', ns .. 'kept:' .. id, index, kept)
end
if not is_claimed then return 0 end
if not has_ended then
  if tonumber(strikes) > 0 then redis.call('HINCRBY', ns .. 'strikes:' .. id, index, strikes) end
  if strike_ranges ~= '' then redis.call('HSET', ns .. 'doubts:' .. id, index, strike_ranges) end
  if max_deaths > 0 then count_death() end
end
if engine_failure ~= '' then record_engine_failure(lane, engine_failure) end
give_back(lane, id, index, reason)
return 1
