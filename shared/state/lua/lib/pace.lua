-- needs: totals
-- What the pace of a lane's engine is learned from.

-- Kinds are named as in shared/ordering/pace.py: by the endpoint and the power of four of a row's tokens.
local function kind_of(endpoint, rows, predicted)
  local tokens = math.max(1, predicted / math.max(1, rows))
  return endpoint .. ' ' .. int(math.floor(math.log(tokens) / math.log(4) + 1e-9))
end

-- Adds the rows of a slice, and their tokens as predicted and as used, to those of their kind.
local function count_for_pace(lane, kind, rows, predicted, used)
  local done = lane_key(lane, 'done')
  redis.call('HINCRBY', done, 'rows ' .. kind, int(rows))
  redis.call('HINCRBY', done, 'predicted ' .. kind, int(predicted))
  redis.call('HINCRBY', done, 'used ' .. kind, int(used))
end

-- Adds them to those of their tenant as well, with tokens of prompts and of answers apart. What is known
-- of many rows is halved, so that new ones count most; shared/ordering/tenant_usage.py reads it. The
-- kinds and the tenants that had no rows for longest are forgotten.
local function learn_usage(lane, kind, tenant, sums)
  local key, since = lane_key(lane, 'usage'), lane_key(lane, 'usage-since')
  local before = redis.call('HGET', key, tenant)
  local kinds = {{kind, unpack(sums)}}
  for _, known in ipairs(before and cjson.decode(before) or {}) do
    if known[1] == kind then
      for i = 2, #known do kinds[1][i] = kinds[1][i] + known[i] end
    elseif #kinds < USAGE_KINDS then
      kinds[#kinds + 1] = known
    end
  end
  if kinds[1][2] > USAGE_ROWS then
    for i = 2, #kinds[1] do kinds[1][i] = kinds[1][i] / 2 end
  end
  redis.call('HSET', key, tenant, cjson.encode(kinds))
  redis.call('ZADD', since, int(now_ms), tenant)
  if redis.call('ZCARD', since) > USAGE_TENANTS then
    local oldest = redis.call('ZRANGE', since, 0, 0)[1]
    redis.call('ZREM', since, oldest)
    redis.call('HDEL', key, oldest)
  end
end

-- Learns from the first result of a lane job how long a start takes: that of a job alone, if the engine
-- ran already, or that of both. The last one counts for a half. Engines of other pools start as they do.
local function learn_start(lane)
  local job = lane_key(lane, 'job')
  if redis.call('HSETNX', job, 'first_result_ms', int(now_ms)) == 0 then return end
  local seen = redis.call('HMGET', job, 'opened_at_ms', 'is_warm', 'runs_on')
  if not seen[1] then return end
  if seen[3] and seen[3] ~= '' and string.match(lane, '[^@]*$') ~= seen[3] then return end
  local field = seen[2] == '1' and 'warm_start' or 'cold_start'
  local seconds = (now_ms - tonumber(seen[1])) / 1000
  local before = tonumber(redis.call('HGET', job, field) or seconds)
  redis.call('HSET', job, field, string.format('%.3f', (before + seconds) / 2))
end

-- How far a forecast was off, as a part of the time from then to the batch's end, and in which part
-- of its range the batch ended. It is an array, as `Foreseen` has its fields.
local function count_end_error(lane, made, forecast)
  local at, middle_at, late_at = forecast[2], forecast[4], forecast[5]
  if not late_at then return end
  local ended_at = now_ms / 1000
  local off = math.abs(middle_at - ended_at) / math.max(1, ended_at - at)
  add_total('end_error', lane, made, math.ceil(1000 * off))
  local part = 'later'
  if ended_at <= middle_at then part = 'p50' elseif ended_at <= late_at then part = 'p80' end
  add_total('ended_' .. part, lane, made, 1)
end

-- Learns from the end of a batch how far its forecasts were off.
local function learn_end(lane, id)
  local foreseen = redis.call('HMGET', batch_key(id), 'foreseen', 'foreseen_later')
  local ended = lane_key(lane, 'ended')
  for i, made in ipairs({'creation', 'running'}) do
    if foreseen[i] then
      redis.call('RPUSH', ended, int(now_ms) .. ' ' .. foreseen[i])
      count_end_error(lane, made, cjson.decode(foreseen[i]))
    end
  end
  redis.call('LTRIM', ended, -MAX_FORESEEN, -1)
  redis.call('HDEL', batch_key(id), 'foreseen', 'foreseen_later')
end
