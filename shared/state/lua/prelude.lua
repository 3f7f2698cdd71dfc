-- What every script begins with. KEYS[1] is the namespace, a hash tag, so that all keys lie in one
-- slot. docs/redis-keys.md lists the keys.
local ns = KEYS[1]
local clock = redis.call('TIME')
local now = tonumber(clock[1])
local now_us = now * 1000000 + tonumber(clock[2])
local now_ms = math.floor(now_us / 1000)

local function int(number) return string.format('%d', number) end
local function batch_key(id) return ns .. 'batch:' .. id end
local function lane_key(lane, what) return ns .. 'lane:' .. lane .. ':' .. what end

local function words(text)
  local found = {}
  for word in string.gmatch(text or '', '%S+') do found[#found + 1] = word end
  return found
end

-- Rings once for each listener and script: a listener that hears it looks at everything.
local rung = {}
local function ring(listener)
  if not rung[listener] then redis.call('PUBLISH', ns .. 'bell:' .. listener, '1') end
  rung[listener] = true
end
