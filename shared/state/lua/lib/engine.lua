-- Records why the lane's engine cannot start; the dispatcher fails the lane's batches with it.
local function record_engine_failure(lane, reason)
  redis.call('HSET', lane_key(lane, 'failure'), 'at', int(now), 'reason', reason)
  ring('dispatcher')
end
