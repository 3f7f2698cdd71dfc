-- needs: totals
-- Records what a dispatcher saw of the engines, and adds the GPU seconds since the look before.
-- ARGV: number of the look before, day, records (JSON by lane), then lane, starting and total (µs)
-- Returns 1, or 0 if another dispatcher has looked meanwhile: its seconds count.
local key = ns .. 'engines'
if (redis.call('HGET', key, '') or '0') ~= ARGV[1] then return 0 end
redis.call('DEL', key)
redis.call('HSET', key, '', int(tonumber(ARGV[1]) + 1))
for lane, record in pairs(cjson.decode(ARGV[3])) do redis.call('HSET', key, lane, record) end
for i = 4, #ARGV, 3 do
  local seconds = ns .. 'engine-seconds:' .. ARGV[2]
  redis.call('HINCRBY', seconds, ARGV[i] .. ' starting', ARGV[i + 1])
  redis.call('HINCRBY', seconds, ARGV[i] .. ' total', ARGV[i + 2])
  redis.call('EXPIRE', seconds, SPENT_SECONDS)
  add_total('gpu_starting', ARGV[i], '-', tonumber(ARGV[i + 1]))
  add_total('gpu_total', ARGV[i], '-', tonumber(ARGV[i + 2]))
end
return 1
