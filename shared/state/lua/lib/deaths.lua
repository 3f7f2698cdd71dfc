-- Engines that died today (UTC) while only rows of one tenant were in them.

local function deaths_key() return ns .. 'engine-deaths:' .. int(math.floor(now / DAY_SECONDS)) end

local function deaths_today(tenant)
  return tonumber(redis.call('HGET', deaths_key(), tenant) or 0)
end

local function count_tenants_death(tenant)
  redis.call('HINCRBY', deaths_key(), tenant, 1)
  redis.call('EXPIRE', deaths_key(), DAY_SECONDS)
end
