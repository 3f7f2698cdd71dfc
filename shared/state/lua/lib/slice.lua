-- Where slices are kept. A member of a lane's lists is `batch:index`.

local function plan_key(id, plan) return ns .. 'plan:' .. id .. ':' .. plan end

-- The batch's slices on one of its lanes that are neither ready nor claimed. The first lane has no
-- suffix: its key exists before anybody knows whether there will be other lanes.
local function pending_key(id, plan, lanes, lane)
  return ns .. 'pending:' .. id .. ':' .. plan .. (lane == lanes[1] and '' or ':' .. lane)
end

-- Takes the slice from those that are claimed. Returns whether it was among them.
local function leave_inflight(id, index)
  redis.call('SREM', ns .. 'begun:' .. id, index)
  redis.call('HDEL', ns .. 'ending:' .. id, index)
  return redis.call('SREM', ns .. 'inflight:' .. id, index) == 1
end

-- The batch and the index of a slice.
local function split_member(member) return string.match(member, '^(.*):(%d+)$') end
