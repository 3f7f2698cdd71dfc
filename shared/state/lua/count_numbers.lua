-- needs: totals
-- Adds what the replicas of an engine have counted since they were last asked. What comes again, or
-- comes after something newer, adds nothing.
-- ARGV: the engine's own lane, then the id and the numbers (JSON) of each replica
local lane, key = ARGV[1], lane_key(ARGV[1], 'numbers')
local COUNTED = {
  live_micros = 'gpu_live', preemptions = 'preemptions',
  prefix_queries = 'prefix_queries', prefix_hits = 'prefix_hits',
  computed_tokens = 'computed_tokens', recomputed_tokens = 'recomputed_tokens'
}
for i = 2, #ARGV, 2 do
  local told = cjson.decode(ARGV[i + 1])
  local known = redis.call('HGET', key, ARGV[i])
  local before = known and cjson.decode(string.match(known, ' (.*)')) or {clock = -1}
  if told.clock > before.clock then
    for name, total in pairs(COUNTED) do
      local amount = told[name] - (before[name] or 0)
      add_total(total, lane, '-', amount)
      if name == 'live_micros' and amount > 0 then
        local today = ns .. 'engine-seconds:' .. int(math.floor(now / DAY_SECONDS))
        redis.call('HINCRBY', today, lane .. ' live', int(amount))
        redis.call('EXPIRE', today, SPENT_SECONDS)
      end
    end
    redis.call('HSET', key, ARGV[i], int(now_ms) .. ' ' .. ARGV[i + 1])
  end
end
-- A replica may be silent for a while, and its counters must not count anew.
local numbers = redis.call('HGETALL', key)
for i = 1, #numbers, 2 do
  local at_ms = tonumber(string.match(numbers[i + 1], '^%d+'))
  if at_ms < now_ms - 1000 * DAY_SECONDS then redis.call('HDEL', key, numbers[i]) end
end
