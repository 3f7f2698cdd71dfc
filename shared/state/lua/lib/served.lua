-- needs: slice
-- What the tenants of a lane have had of its engine: tokens per unit of weight, as in shared/ordering.
-- The field '' names the tenant that was the last to wait.

local function weight_of(tenant)
  return tonumber(redis.call('HGET', ns .. 'weights', tenant) or 1)
end

local function served(lane, tenant)
  return tonumber(redis.call('HGET', lane_key(lane, 'served'), tenant) or 0)
end

-- Charges the tenant for tokens; negative ones are given back.
local function charge(lane, tenant, tokens)
  if tokens == 0 then return end
  redis.call('HINCRBYFLOAT', lane_key(lane, 'served'), tenant, tokens / weight_of(tenant))
end

-- Charges the tenant for a claim, as predicted. The tokens are negative when the claim ends.
local function charge_claim(lane, tenant, tokens)
  charge(lane, tenant, tokens)
  local left = redis.call('HINCRBYFLOAT', lane_key(lane, 'claimed'), tenant, tokens)
  if tonumber(left) <= 0 then redis.call('HDEL', lane_key(lane, 'claimed'), tenant) end
end

-- What the tenant has had without what is claimed, most of which is still to be computed.
local function served_so_far(lane, tenant)
  local claimed = tonumber(redis.call('HGET', lane_key(lane, 'claimed'), tenant) or 0)
  return served(lane, tenant) - claimed / weight_of(tenant)
end

-- What an engine computed for a part, from the numbers of COUNTERS: prompts without what was cached,
-- and answers.
local function used_tokens(usage)
  return math.max(0, tonumber(usage[3]) - tonumber(usage[4])) + tonumber(usage[5])
end

-- What a slice is predicted to take.
local function predicted_tokens(id, plan, index)
  return cjson.decode(redis.call('HGET', plan_key(id, plan), index))[5]
end

-- A tenant that had nothing waiting has something again. It is owed nothing for the time without.
-- Claims of others do not count: they are computed while it waits.
local function lift(lane, tenant, others)
  local floor
  for _, other in ipairs(others) do
    if other ~= tenant then floor = math.min(floor or math.huge, served_so_far(lane, other)) end
  end
  floor = floor or served_so_far(lane, redis.call('HGET', lane_key(lane, 'served'), '') or '*')
  if served(lane, tenant) < floor then
    redis.call('HSET', lane_key(lane, 'served'), tenant, string.format('%.17g', floor))
  end
end

-- No tenant has anything waiting any more.
local function remember_last(lane, tenant)
  redis.call('HSET', lane_key(lane, 'served'), '', tenant)
end
