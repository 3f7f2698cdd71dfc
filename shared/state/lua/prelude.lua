-- What every script shares. The table TRANSITIONS and the set FINAL are prepended from
-- shared/lifecycle.py. KEYS[1] is the namespace, a hash tag, so that all keys lie in one slot.
local ns = KEYS[1]
local clock = redis.call('TIME')
local now = tonumber(clock[1])
local now_ms = now * 1000 + math.floor(tonumber(clock[2]) / 1000)

local function int(number) return string.format('%d', number) end
local function batch_key(id) return ns .. 'batch:' .. id end
local function lane_key(lane, what) return ns .. 'lane:' .. lane .. ':' .. what end
local function words(text)
  local found = {}
  for word in string.gmatch(text or '', '%S+') do found[#found + 1] = word end
  return found
end
local function is_rebuilding() return redis.call('EXISTS', ns .. 'rebuilding') == 1 end
-- Once a script: whoever hears it looks at all there is.
local rung = {}
local function ring(whom)
  if not rung[whom] then redis.call('PUBLISH', ns .. 'bell:' .. whom, '1') end
  rung[whom] = true
end

-- The small state that every event carries.
local SNAPSHOT = {
  'id', 'tenant', 'endpoint', 'model', 'status', 'input_file_id', 'output_file_id',
  'error_file_id', 'created_at', 'in_progress_at', 'expires_at', 'finalizing_at', 'completed_at',
  'failed_at', 'expired_at', 'cancelling_at', 'cancelled_at', 'completion_window', 'metadata',
  'total', 'completed', 'failed', 'input_tokens', 'cached_tokens', 'output_tokens',
  'reasoning_tokens', 'correlation_id', 'output_object', 'error_object', 'first_error',
  'paused', 'priority', 'traceparent', 'tracestate', 'deliver_results', 'given_up'
}

-- A score for `index` that no other member has: microseconds, so that every page and every search can
-- begin behind one number.
local function next_score(index)
  local last = tonumber(redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')[2] or 0)
  return string.format('%.0f', math.max(tonumber(clock[1]) * 1000000 + tonumber(clock[2]), last + 1))
end

-- As `next_score`, for what happened in that second long ago.
local function past_score(index, seconds, id)
  local score = seconds * 1000000 + tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) % 1000000
  while redis.call('ZCOUNT', index, int(score), int(score)) > 0 do score = score + 1 end
  return int(score)
end

-- What an event is called that S3 knows of before it happens, so that it is the same one after Redis
-- was lost: its number, and its time in milliseconds. nil where `sequence` is ''.
local function pin_of(sequence, at_ms)
  if sequence == '' then return nil end
  return {sequence = int(tonumber(sequence)), at_ms = int(tonumber(at_ms))}
end

-- The batch's next event: its number, and the state that it carries.
local function next_event(id, pin)
  if pin then redis.call('HSET', batch_key(id), 'sequence', pin.sequence) end
  local sequence = pin and pin.sequence or redis.call('HINCRBY', batch_key(id), 'sequence', 1)
  local values, snapshot = redis.call('HMGET', batch_key(id), unpack(SNAPSHOT)), {}
  for i, field in ipairs(SNAPSHOT) do
    if values[i] then snapshot[field] = values[i] end
  end
  return sequence, cjson.encode(snapshot), snapshot
end

-- Tells those who watch this very batch now; what they miss is in the record. Returns what it told.
local function show(id, kind, sequence, at_ms, text)
  local event = sequence .. ' ' .. at_ms .. ' ' .. kind .. ' ' .. text
  redis.call('PUBLISH', ns .. 'watch:' .. id, event)
  return event
end

local function put_out(kind, sequence, at_ms, text, ...)
  redis.call('XADD', ns .. 'outbox:events', '*', 'type', kind, 'sequence', sequence,
    'at_ms', at_ms, 'snapshot', text, ...)
end

-- How long a batch's events can be asked for again after its end, and how many of them.
local HISTORY_SECONDS, MOST_EVENTS = 604800, 100

local function announce(id, kind, pin)
  local sequence, text, snapshot = next_event(id, pin)
  local at_ms = pin and pin.at_ms or int(now_ms)
  put_out(kind, sequence, at_ms, text)
  local history = ns .. 'events:' .. id
  if redis.call('RPUSH', history, show(id, kind, sequence, at_ms, text)) > MOST_EVENTS then
    redis.call('LTRIM', history, -MOST_EVENTS, -1)
  end
  if FINAL[snapshot.status] then redis.call('EXPIRE', history, HISTORY_SECONDS) end
  local changes = ns .. 'changes:' .. snapshot.tenant
  redis.call('ZADD', changes, next_score(changes), id)
  -- This event has all that they would have told.
  redis.call('HDEL', ns .. 'progress', id)
  redis.call('SREM', ns .. 'progress-late', id)
end

local PROGRESS_MS = 1000

-- Progress is for the moment: it waits in memory only, the newest of each batch, and nobody misses
-- what was overtaken. If the last one was just now, `take_progress` makes the next.
local function progress(id)
  if now_ms - tonumber(redis.call('HGET', batch_key(id), 'progress_ms') or 0) < PROGRESS_MS then
    redis.set_repl(redis.REPL_NONE)
    redis.call('SADD', ns .. 'progress-late', id)
    redis.set_repl(redis.REPL_ALL)
    return
  end
  redis.call('HSET', batch_key(id), 'progress_ms', int(now_ms))
  local sequence, text = next_event(id)
  local event = show(id, 'batch.progress', sequence, int(now_ms), text)
  redis.set_repl(redis.REPL_NONE)
  redis.call('HSET', ns .. 'progress', id, event)
  redis.call('SREM', ns .. 'progress-late', id)
  redis.set_repl(redis.REPL_ALL)
end

-- How many requests, and how many prompt tokens of a model, the running batches of a tenant have.
local function enqueued(tenant, model)
  local values = redis.call('HMGET', ns .. 'enqueued:' .. tenant, 'requests', 'tokens:' .. model)
  return tonumber(values[1] or 0), tonumber(values[2] or 0)
end

-- Counts a batch's share of its tenant's queue: sign 1 when it begins to run, -1 when it stops.
-- Of several models, each has its own prompt tokens.
local function enqueue(id, sign)
  local values = redis.call('HMGET', batch_key(id), 'tenant', 'queued_model', 'total', 'prompt_tokens')
  if not values[2] then return end
  local queue = ns .. 'enqueued:' .. values[1]
  local shares, tokens = {requests = values[3]}, words(values[4])
  for i, model in ipairs(words(values[2])) do shares['tokens:' .. model] = tokens[i] or 0 end
  for field, share in pairs(shares) do
    if redis.call('HINCRBY', queue, field, sign * tonumber(share or 0)) <= 0 then
      redis.call('HDEL', queue, field)
    end
  end
end

-- A batch's slices of one of its lanes that are neither ready nor claimed. The first lane has its key
-- before anybody knows whether there will be others.
local function pending_key(id, plan, lanes, lane)
  return ns .. 'pending:' .. id .. ':' .. plan .. (lane == lanes[1] and '' or ':' .. lane)
end

-- How long that is kept which only a live batch needs.
local ENDED_SECONDS = 86400

-- What nobody needs after a batch's end, a prefix ('' for none), and what nobody needs a day later.
local function discard(prefix, later)
  if prefix ~= '' then
    -- And once more when nobody is alive any more who was frozen over a part and then died.
    redis.call('ZADD', ns .. 'garbage', now, prefix, int(now + ENDED_SECONDS), prefix .. '/')
  end
  for _, member in ipairs(later) do
    redis.call('ZADD', ns .. 'garbage', int(now + ENDED_SECONDS), member)
  end
end

-- Lets go of everything that only a live batch needs.
local function retire(id)
  local values = redis.call('HMGET', batch_key(id), 'plan', 'input_file_id', 'lane')
  redis.call('ZREM', ns .. 'deadlines', id)
  local suffixes = {'parts:' .. id, 'epochs:' .. id, 'strikes:' .. id, 'inflight:' .. id,
    'commits:' .. id, 'jobs:' .. id, 'reasons:' .. id, 'doubts:' .. id}
  if values[1] then
    suffixes[#suffixes + 1] = 'plan:' .. id .. ':' .. values[1]
    local lanes = words(values[3])
    for _, lane in ipairs(lanes) do
      redis.call('EXPIRE', pending_key(id, values[1], lanes, lane), ENDED_SECONDS)
    end
  end
  for _, suffix in ipairs(suffixes) do redis.call('EXPIRE', ns .. suffix, ENDED_SECONDS) end
  -- Whoever was slow to plan it may still be writing.
  redis.call('ZADD', ns .. 'garbage', int(now + ENDED_SECONDS), 'batches/' .. id .. '/plan.json')
  local readers = ns .. 'readers:' .. values[2]
  redis.call('SREM', readers, id)
  local garbage = redis.call('HGET', ns .. 'deleted', values[2])
  if garbage and redis.call('SCARD', readers) == 0 then
    redis.call('HDEL', ns .. 'deleted', values[2])
    redis.call('ZADD', ns .. 'garbage', now, garbage)
  end
end

-- Webhooks: an endpoint's deliveries wait in its queue by the time of their next attempt, and move
-- to its claims by the end of their lease. `webhooks-due` has the endpoints by when to look next.
local DELIVERY_TRIED_SECONDS = 259200
local DELIVERY_SECONDS, FINISHED_DELIVERY_SECONDS = 864000, 604800

local function webhook_key(id) return ns .. 'webhook:' .. id end
local function delivery_key(id) return ns .. 'webhook-delivery:' .. id end

local function queue_delivery(endpoint, delivery)
  redis.call('ZADD', ns .. 'webhook-queue:' .. endpoint, int(now_ms), delivery)
  redis.call('ZADD', ns .. 'webhooks-due', 'LT', int(now_ms), endpoint)
  redis.call('EXPIRE', delivery_key(delivery), DELIVERY_SECONDS)
  ring('webhooks')
end

-- One delivery for each of the tenant's endpoints that wants to know of it. The id is always the
-- same for the same end of a batch.
local function notify(id, kind, at)
  -- For a batch that is made again long after its end: by now they would have been given up.
  if at < now - DELIVERY_TRIED_SECONDS then return end
  local batch = redis.call('HMGET', batch_key(id), 'tenant', 'sequence')
  for _, endpoint in ipairs(redis.call('ZRANGE', ns .. 'webhooks:' .. batch[1], 0, -1)) do
    local wish = redis.call('HMGET', webhook_key(endpoint), 'event_types', 'disabled_at')
    if wish[1] and not wish[2] and string.find(',' .. wish[1] .. ',', ',' .. kind .. ',', 1, true) then
      local delivery = 'wh_' .. string.sub(redis.sha1hex(endpoint .. ':' .. id .. ':' .. kind), 1, 32)
      local index = ns .. 'webhook-deliveries:' .. endpoint
      redis.call('HSET', delivery_key(delivery), 'endpoint', endpoint, 'type', kind, 'batch', id,
        'sequence', batch[2], 'created_at', int(at), 'state', 'pending',
        'since_ms', int(now_ms), 'next_at_ms', int(now_ms), 'tries', '0', 'claims', '0')
      redis.call('ZADD', index, int(now_ms), delivery)
      redis.call('ZREMRANGEBYSCORE', index, '-inf', int(now_ms - 1000 * DELIVERY_SECONDS * 3))
      redis.call('EXPIRE', index, DELIVERY_SECONDS * 3)
      queue_delivery(endpoint, delivery)
    end
  end
end

-- An endpoint that has asked to slow down gets one delivery at a time.
local function webhook_room(endpoint, each)
  local slow = redis.call('HGET', webhook_key(endpoint), 'slow')
  return (slow and 1 or each) - redis.call('ZCARD', ns .. 'webhook-claims:' .. endpoint)
end

-- When to look at the endpoint again: at its next delivery if it may have one more, and in any case
-- when a claim has run out.
local function schedule_webhook(endpoint, each)
  local head = redis.call('ZRANGE', ns .. 'webhook-queue:' .. endpoint, 0, 0, 'WITHSCORES')
  local lease = redis.call('ZRANGE', ns .. 'webhook-claims:' .. endpoint, 0, 0, 'WITHSCORES')
  local at
  if head[2] and webhook_room(endpoint, each) > 0 then
    local paused = redis.call('HGET', webhook_key(endpoint), 'paused_until_ms')
    -- Not before now, so that endpoints take turns however long their queues are.
    at = math.max(tonumber(head[2]), tonumber(paused or 0), now_ms)
  end
  if lease[2] and (not at or tonumber(lease[2]) < at) then at = tonumber(lease[2]) end
  if at then
    redis.call('ZADD', ns .. 'webhooks-due', int(at), endpoint)
  else
    redis.call('ZREM', ns .. 'webhooks-due', endpoint)
  end
end

local function fail_delivery(delivery)
  redis.call('HSET', delivery_key(delivery), 'state', 'failed')
  redis.call('EXPIRE', delivery_key(delivery), FINISHED_DELIVERY_SECONDS)
end

-- A batch waits on a lane while it has slices there that are neither ready nor claimed. `waiting` has
-- all of them, and besides each tenant has its own, the most urgent first, as dispatcher/ordering.py
-- ages priorities: so nobody is behind what another one has waiting.
local AGEING_SECONDS = 600

local function waiting_key(lane, tenant) return lane_key(lane, 'waiting:' .. tenant) end

local function wait(lane, id)
  local values = redis.call('HMGET', batch_key(id), 'tenant', 'created_at', 'priority')
  local place = tonumber(values[2]) - AGEING_SECONDS * tonumber(values[3] or 0)
  redis.call('ZADD', lane_key(lane, 'waiting'), values[2], id)
  redis.call('ZADD', waiting_key(lane, values[1]), int(place), id)
  redis.call('SADD', lane_key(lane, 'tenants'), values[1])
end

local function unwait(lane, id)
  if redis.call('ZREM', lane_key(lane, 'waiting'), id) == 0 then return end
  local tenant = redis.call('HGET', batch_key(id), 'tenant')
  redis.call('ZREM', waiting_key(lane, tenant), id)
  if redis.call('EXISTS', waiting_key(lane, tenant)) == 0 then
    redis.call('SREM', lane_key(lane, 'tenants'), tenant)
  end
end

-- The only place where a status is written after a batch's creation. Returns 'ok', 'repeat' when
-- the batch is there already, 'missing', 'moved' when another event has the number of `pin`, or the
-- status that rules the event out. What is pinned `silent` happened too long ago to be told again.
local function transition(id, event, fields, pin)
  local key, row = batch_key(id), TRANSITIONS[event]
  local values = redis.call('HMGET', key, 'status', 'created_at', 'paused', 'sequence')
  local status = values[1]
  if not status then return 'missing' end
  if status == row.target then return 'repeat' end
  if not row.sources[status] then return status end
  if pin and tonumber(values[4] or 0) >= tonumber(pin.sequence) then return 'moved' end
  local at = pin and math.floor(tonumber(pin.at_ms) / 1000) or now
  if fields and #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  redis.call('HSET', key, 'status', row.target, row.target .. '_at', int(at))
  redis.call('ZREM', ns .. 'status:' .. status, id)
  if row.target == 'in_progress' then enqueue(id, 1) end
  if status == 'in_progress' then enqueue(id, -1) end
  for _, lane in ipairs(words(redis.call('HGET', key, 'lane'))) do
    if row.target == 'in_progress' then
      redis.call('SADD', ns .. 'lanes', lane)
      if not values[3] then
        redis.call('ZADD', lane_key(lane, 'active'), values[2], id)
        wait(lane, id)
      end
    else
      redis.call('ZREM', lane_key(lane, 'active'), id)
      unwait(lane, id)
    end
  end
  if not pin or not pin.silent then announce(id, 'batch.' .. row.target, pin) end
  if FINAL[row.target] then
    redis.call('HINCRBY', ns .. 'ended', row.target, 1)
    redis.call('ZADD', ns .. 'endings', int(at), id)
    if not pin or not pin.silent then notify(id, 'batch.' .. row.target, at) end
  end
  -- Its results so far can be read for as long as their places are known.
  if row.target == 'failed' and redis.call('HEXISTS', key, 'plan') == 1 then
    redis.call('ZADD', ns .. 'garbage', int(now + ENDED_SECONDS), 'batches/' .. id .. '/parts/')
  end
  if FINAL[row.target] then retire(id) else redis.call('ZADD', ns .. 'status:' .. row.target, now, id) end
  ring('dispatcher')
  return 'ok'
end

-- Puts a slice in its lane's line. One in which an engine died, or whose batch begins with strikes for
-- each of its rows, stands among the suspects, which run apart from all others.
local function line_up(lane, id, index, rank)
  local batch = redis.call('HMGET', batch_key(id), 'strikes', 'plan')
  if batch[1] and redis.call('HSETNX', ns .. 'strikes:' .. id, index, batch[1]) == 1 then
    local slice = cjson.decode(redis.call('HGET', ns .. 'plan:' .. id .. ':' .. batch[2], index))
    local doubt = '[[[0,' .. int(slice[4]) .. ',' .. batch[1] .. ']],""]'
    redis.call('HSET', ns .. 'doubts:' .. id, index, doubt)
  end
  local is_suspect = redis.call('HEXISTS', ns .. 'strikes:' .. id, index) == 1
  redis.call('ZADD', lane_key(lane, is_suspect and 'suspects' or 'ready'),
    is_suspect and int(now_ms) or rank, id .. ':' .. index)
end

-- A slice in line, with all that a run needs of its batch; nil when it is not to be run any more.
local function in_line(member)
  local id, index = string.match(member, '^(.*):(%d+)$')
  local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'bucket', 'key', 'etag',
    'endpoint', 'tenant', 'version_id', 'engine_deaths', 'strikes')
  local slice = batch[2] and redis.call('HGET', ns .. 'plan:' .. id .. ':' .. batch[2], index)
  if batch[1] ~= 'in_progress' or not slice
    or redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 1 then return nil end
  return {id = id, index = index, member = member, batch = batch, slice = slice,
    rows = cjson.decode(slice)[4]}
end

-- Claims a slice in line for a lane job; returns what `_claim` of slices.py reads.
local function grant(lane, job, lease_ms, line, found)
  local id, index, batch = found.id, found.index, found.batch
  redis.call('ZREM', line, found.member)
  redis.call('ZADD', lane_key(lane, 'claims'), int(now_ms + tonumber(lease_ms)), found.member)
  redis.call('SADD', ns .. 'inflight:' .. id, index)
  redis.call('HSET', ns .. 'jobs:' .. id, index, job)
  redis.call('HINCRBY', lane_key(lane, 'served'), batch[7], cjson.decode(found.slice)[5])
  local epoch = redis.call('HINCRBY', ns .. 'epochs:' .. id, index, 1)
  local strikes = redis.call('HGET', ns .. 'strikes:' .. id, index) or 0
  return {id, tonumber(index), epoch, tonumber(strikes), found.slice, batch[3], batch[4], batch[5],
    batch[6], batch[7], batch[8] or '', redis.call('HGET', ns .. 'doubts:' .. id, index) or '',
    tonumber(batch[9] or 0), tonumber(batch[10] or 0)}
end

-- Notes why the lane's engine cannot start; its leader fails the lane's batches with that.
local function fail_engine(lane, reason)
  redis.call('HSET', lane_key(lane, 'failure'), 'at', int(now), 'reason', reason)
  ring('dispatcher')
end

-- Ends a claim without a result; the slice goes to the head of its lane if its batch still runs,
-- and back to the pending ones if it is paused.
local function give_back(lane, id, index, reason)
  redis.call('ZREM', lane_key(lane, 'claims'), id .. ':' .. index)
  redis.call('SREM', ns .. 'inflight:' .. id, index)
  local values = redis.call('HMGET', batch_key(id), 'status', 'paused', 'plan', 'lane')
  if values[1] == 'in_progress' then
    if redis.call('HEXISTS', ns .. 'parts:' .. id, index) == 0 then
      redis.call('HSET', ns .. 'reasons:' .. id, index, reason .. ' ' .. int(now))
      if values[2] then
        redis.call('ZADD', pending_key(id, values[3], words(values[4]), lane), index, index)
      else
        line_up(lane, id, index, -1)
        ring('lane:' .. lane)
      end
    end
  else
    ring('dispatcher')
  end
end

-- Whether a new file's objects are still there to be kept: what is reserved is garbage in advance.
local function keep(file)
  redis.call('ZREM', ns .. 'garbage', file.key .. '.json')
  local is_reserved = redis.call('ZREM', ns .. 'garbage', file.key) == 1
  return is_reserved or redis.call('EXISTS', ns .. 'file:' .. file.id) == 1
end

-- Takes what the batch has in the lane's line back to its pending slices, to be fed anew or, if it is
-- paused, not.
local function unready(id, lane, lanes, plan)
  local taken = 0
  for _, line in ipairs({lane_key(lane, 'ready'), lane_key(lane, 'suspects')}) do
    for _, member in ipairs(redis.call('ZRANGE', line, 0, -1)) do
      local owner, index = string.match(member, '^(.*):(%d+)$')
      if owner == id then
        redis.call('ZREM', line, member)
        redis.call('ZADD', pending_key(id, plan, lanes, lane), index, index)
        taken = taken + 1
      end
    end
  end
  if taken > 0 and redis.call('ZSCORE', lane_key(lane, 'active'), id) then wait(lane, id) end
end

-- Lets the pack in which a batch's input lies stay for as long as somebody may want that.
local function keep_pack(id, input_file)
  local values = redis.call('HMGET', batch_key(id), 'key', 'expires_at')
  local pack = string.match(values[1] or '', '^packs/[^/]+/')
  if not pack then return end
  for _, set in ipairs({'garbage', 'doomed'}) do redis.call('ZREM', ns .. set, pack) end
  -- Its inputs go when no file of them is left, and nobody reads them.
  local ends = tonumber(values[2])
  if input_file then ends = math.max(ends, tonumber(input_file.expires_at or math.huge)) end
  if ends < math.huge then
    redis.call('ZADD', ns .. 'garbage', 'GT', int(ends + ENDED_SECONDS), values[1])
  end
end

-- Takes a live batch out of everything that leads to it, for S3 says what it is.
local function leave(id)
  local values = redis.call('HMGET', batch_key(id), 'status', 'plan', 'lane')
  redis.call('ZREM', ns .. 'status:' .. values[1], id)
  if values[1] == 'in_progress' then enqueue(id, -1) end
  local lanes = words(values[3])
  for _, lane in ipairs(lanes) do
    redis.call('ZREM', lane_key(lane, 'active'), id)
    unwait(lane, id)
    for _, list in ipairs({'ready', 'suspects', 'claims'}) do
      for _, member in ipairs(redis.call('ZRANGE', lane_key(lane, list), 0, -1)) do
        if string.match(member, '^(.*):%d+$') == id then redis.call('ZREM', lane_key(lane, list), member) end
      end
    end
    redis.call('UNLINK', pending_key(id, values[2], lanes, lane))
  end
  if values[2] then redis.call('UNLINK', ns .. 'plan:' .. id .. ':' .. values[2]) end
  redis.call('UNLINK', ns .. 'inflight:' .. id)
end

-- One that is only now written, and is older, gets its place by its time.
local function write_file(file, is_old)
  local fields = {}
  for name, value in pairs(file) do
    fields[#fields + 1] = name
    fields[#fields + 1] = tostring(value)
  end
  local key = ns .. 'file:' .. file.id
  if redis.call('EXISTS', key) == 1 then return end
  redis.call('HSET', key, unpack(fields))
  local index = ns .. 'files:' .. file.tenant
  redis.call('ZADD', index, is_old and past_score(index, file.created_at, file.id) or next_score(index), file.id)
  if file.expires_at then redis.call('ZADD', ns .. 'expiring', file.expires_at, file.id) end
end

-- The queue of its tenant that has no room for a batch that would start with these fields: 'requests',
-- or 'tokens' with the model's place (from 1); nil where there is room. Limits as for `apply`.
local function full_queue(id, fields, most, limits)
  local told = {}
  for i = 1, #fields, 2 do told[fields[i]] = fields[i + 1] end
  local tenant = redis.call('HGET', batch_key(id), 'tenant')
  local models, shares = words(told.queued_model), words(told.prompt_tokens)
  limits = words(limits)
  for i = 1, math.max(#models, 1) do
    local requests, tokens = enqueued(tenant, models[i] or '')
    if i == 1 and most > 0 and requests + tonumber(told.total or 0) > most then return 'requests' end
    local limit = tonumber(limits[i] or 0)
    if limit > 0 and tokens + tonumber(shares[i] or 0) > limit then return 'tokens ' .. i end
  end
end

-- Makes the batch as `validating`, with its events, once; without fields it is only met. `input_file`
-- and `submission` may be nil, and `told`, which is who gets a reply.
-- Returns 'accepted', 'duplicate' or 'conflict'.
local function accept_batch(id, fingerprint, fields, input_file, submission, told)
  local key = batch_key(id)
  -- With the batch in one step: no crash can make a batch whose sender is never told.
  local function reply(is_duplicate)
    if not told then return end
    local values = redis.call('HMGET', key, 'status', 'created_at', 'expires_at')
    redis.call('XADD', ns .. 'outbox:replies', '*', 'to', told.to, 'message_id', told.message_id,
      'correlation_id', told.correlation_id, 'body', cjson.encode({
        status = 'accepted', duplicate = is_duplicate, batch = {id = id, object = 'batch',
          status = values[1], created_at = tonumber(values[2]), expires_at = tonumber(values[3])}}))
  end
  local seen = redis.call('HGET', key, 'fingerprint')
  if seen then
    if seen ~= fingerprint then return 'conflict' end
    reply(true)
    return 'duplicate'
  end
  if #fields == 0 then error('There is no batch ' .. id .. ' to meet.') end
  redis.call('HSET', key, 'status', 'validating', 'fingerprint', fingerprint, unpack(fields))
  if input_file then write_file(input_file) end
  local values = redis.call('HMGET', key, 'tenant', 'input_file_id', 'expires_at')
  keep_pack(id, input_file)
  local score = string.format('%.0f', tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
  redis.call('ZADD', ns .. 'batches:' .. values[1], score, id)
  redis.call('ZADD', ns .. 'status:validating', now, id)
  redis.call('ZADD', ns .. 'deadlines', values[3], id)
  redis.call('SADD', ns .. 'readers:' .. values[2], id)
  if submission then redis.call('XADD', ns .. 'outbox:submissions', '*', 'message', submission) end
  reply(false)
  -- As its manifest says: made again from that, it is the same event.
  announce(id, 'batch.accepted', pin_of('1', redis.call('HGET', key, 'created_at') .. '000'))
  ring('dispatcher')
  return 'accepted'
end

-- nil when there is none. Its time is over at once, not only when the reaper comes.
local function upload_status(id)
  local values = redis.call('HMGET', ns .. 'upload:' .. id, 'status', 'expires_at', 'held_until')
  local ends = math.max(tonumber(values[2] or 0), tonumber(values[3] or 0))
  if values[1] == 'pending' and now >= ends then return 'expired' end
  return values[1] or nil
end

-- How a limit of so many calls in `period` microseconds stands if one more came now: how long that
-- one has to wait (0 or less: not at all), how many more could follow it, how long until all are free
-- again, and the mark to keep if it is let in. Calls may come in a burst; their room comes back evenly.
local function standing(key, calls, period)
  local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  local gap = period / calls
  local before = math.max(tonumber(redis.call('GET', key) or 0), now_us)
  local after = before + gap
  local wait = math.floor(after - now_us - period)
  if wait > 0 then return wait, 0, math.ceil(before - now_us), nil end
  -- A thousandth more, because the numbers of a clock in microseconds are not exact.
  return 0, math.floor((now_us + period - after) / gap + 0.001), math.ceil(after - now_us), after
end

-- Keeps the mark of `standing`, in memory only: with each command on disk before its answer, a call
-- that only reads would cost a write.
local function let_in(key, mark)
  redis.set_repl(redis.REPL_NONE)
  local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  local life = math.max(math.ceil((mark - now_us) / 1000), 1)
  redis.call('SET', key, string.format('%.0f', mark), 'PX', int(life))
  redis.set_repl(redis.REPL_ALL)
end
