-- needs: totals
-- GPU time: what a batch's parts have spent of it, and what a batch that ends adds to its day.

-- Adds what a part has spent to its batch and to the day, by the lane of the engine that ran it. With
-- -1 as `sign` it is taken back.
local function count_spent(id, lane, part, sign)
  local text = part[9] or ''
  if not string.find(text, '=') then return end
  local spent = cjson.decode(redis.call('HGET', batch_key(id), 'spent') or '{}')
  local today = ns .. 'engine-seconds:' .. int(math.floor(now / DAY_SECONDS))
  for pool, micros in string.gmatch(text, '([%w-]+)=(%d+)') do
    local engine = string.match(lane, '^(.*)@') .. '@' .. pool
    spent[engine] = (spent[engine] or 0) + sign * tonumber(micros)
    redis.call('HINCRBY', today, engine .. ' rows', int(sign * tonumber(micros)))
    add_total('gpu_rows', engine, '-', sign * tonumber(micros))
  end
  redis.call('EXPIRE', today, SPENT_SECONDS)
  redis.call('HSET', batch_key(id), 'spent', cjson.encode(spent))
end

-- A lane learns what its tokens cost, as they were predicted: old parts count less and less.
local function learn_cost(lane, predicted, part)
  local micros = 0
  for amount in string.gmatch(part[9] or '', '=(%d+)') do micros = micros + tonumber(amount) end
  if micros == 0 or predicted == 0 then return end
  local key = lane_key(lane, 'cost')
  redis.call('HINCRBYFLOAT', key, 'micros', micros)
  if tonumber(redis.call('HINCRBYFLOAT', key, 'tokens', predicted)) > MAX_COST_TOKENS then
    for _, field in ipairs({'micros', 'tokens'}) do
      redis.call('HSET', key, field, string.format('%.17g', redis.call('HGET', key, field) / 2))
    end
  end
end

-- How far the prediction for a batch with one lane was off, as a part of what it has spent.
local function learn_error(id, micros)
  local batch = redis.call('HMGET', batch_key(id), 'lane', 'predicted_micros', 'status', 'failed')
  if not batch[2] or batch[3] ~= 'completed' or #words(batch[1]) ~= 1 or micros == 0 then return end
  local key = lane_key(batch[1], 'cost')
  local off = math.abs(tonumber(batch[2]) - micros) / micros
  local before = tonumber(redis.call('HGET', key, 'error') or off)
  redis.call('HSET', key, 'error', string.format('%.17g', before + (off - before) / RECENT_BATCHES))
end

-- Adds a batch that has ended to the numbers of the day of its end.
local function bill(id, at)
  local batch = redis.call('HMGET', batch_key(id), 'tenant', 'model', 'endpoint', 'spent', 'prices',
    'completed', 'failed', 'input_tokens', 'cached_tokens', 'output_tokens')
  local day = ns .. 'spent:' .. int(math.floor(at / DAY_SECONDS))
  local function add(what, whose, amount)
    if amount > 0 then redis.call('HINCRBY', day, what .. ' ' .. batch[1] .. ' ' .. whose, int(amount)) end
  end
  local prices = batch[5] and cjson.decode(batch[5]) or {pools = {}}
  local total = 0
  for lane, micros in pairs(cjson.decode(batch[4] or '{}')) do
    total = total + micros
    add('gpu', lane, micros)
    -- Of an hour; what it comes to is in billionths.
    local price = prices.pools[string.match(lane, '@([^@]*)$')]
    if price then add('nano', lane .. ' ' .. prices.currency, math.floor(micros * price * 1000 / HOUR_SECONDS)) end
  end
  learn_error(id, total)
  local whose = (batch[2] or '-') .. ' ' .. batch[3]
  add('requests', whose, tonumber(batch[6] or 0) + tonumber(batch[7] or 0))
  for i, name in ipairs({'input', 'cached', 'output'}) do add(name, whose, tonumber(batch[7 + i] or 0)) end
  redis.call('EXPIRE', day, SPENT_SECONDS)
end
