-- What operators have set for tenants: JSON by tenant, and under '*' for every tenant that has nothing
-- of its own.

-- The limit of this name; `default` where nothing is set.
local function limit_of(tenant, name, default)
  for _, text in ipairs(redis.call('HMGET', ns .. 'tenants', tenant, '*')) do
    local limit = text and cjson.decode(text)[name]
    if limit then return limit end
  end
  return default
end
