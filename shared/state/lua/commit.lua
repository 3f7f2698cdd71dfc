-- needs: lifecycle, event, open, progress, slice, part, served, waiting, transition, pace, spent
-- Records a part. The first commit of a slice wins; later ones change nothing.
-- ARGV: lane, batch id, index, epoch, part (JSON), completed, failed, input tokens, cached tokens,
-- output tokens, reasoning tokens, what to announce about the slice (JSON; '' for nothing), then id
-- and record (JSON) of each row that killed engines
-- Returns 'ok' (also if this very part is recorded), 'committed' (another part was first), 'fenced' or
-- 'closed'.
local lane, id, index, epoch, part, announcement =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[12]
local COUNTS_BEFORE, DEAD_ROWS_FROM = 5, 13
local key, parts, inflight = batch_key(id), ns .. 'parts:' .. id, ns .. 'inflight:' .. id
local member, rows = id .. ':' .. index, tonumber(ARGV[6]) + tonumber(ARGV[7])
local batch = redis.call('HMGET', key, 'status', 'lane', 'lane_failed:' .. lane, 'plan',
  'tenant')
local status, lanes, lane_failed, plan = batch[1], batch[2], batch[3], batch[4]
local recorded = redis.call('HGET', parts, index)
local current = redis.call('HGET', ns .. 'epochs:' .. id, index)

-- Why the part cannot be recorded; nil if it can.
local function refusal()
  if recorded then return 'committed' end
  if current ~= epoch then return 'fenced' end
  -- The batch's rows on this lane were given up.
  if lane_failed then return 'fenced' end
  -- The finaliser of a closing batch waits for the claims that live, and for nothing else.
  if status ~= 'in_progress' and redis.call('SISMEMBER', inflight, index) == 0 then return 'closed' end
  if not status or FINAL[status] then return 'closed' end
end

-- The parts of a batch are swept at its end; nobody would find one that was written later.
local function sweep_late_part()
  local name = cjson.decode(part)[1]
  local has_ended = not status or FINAL[status]
  if has_ended and current and not (recorded and cjson.decode(recorded)[1] == name) then
    redis.call('ZADD', ns .. 'garbage', now, name)
  end
end

-- The claim was charged as predicted; what was given back meanwhile is charged as a whole.
local function correct_charge(was_claimed)
  local predicted = predicted_tokens(id, plan, index)
  local usage = {unpack(ARGV, COUNTS_BEFORE + 1, COUNTS_BEFORE + #COUNTERS)}
  local used = used_tokens(usage)
  if was_claimed then charge_claim(lane, batch[5], -predicted) end
  charge(lane, batch[5], used)
  learn_cost(lane, predicted, cjson.decode(part))
  redis.call('HINCRBY', lane_key(lane, 'job'), 'tokens', predicted)
  local kind = kind_of(redis.call('HGET', key, 'endpoint') or '', rows, predicted)
  count_for_pace(lane, kind, rows, predicted, used)
  local answers = tonumber(usage[5])
  learn_usage(lane, kind, batch[5], {rows, predicted, used - answers, answers})
end

local function end_claim()
  for _, list in ipairs({'claims', 'ready', 'suspects'}) do
    redis.call('ZREM', lane_key(lane, list), member)
  end
  local was_claimed = leave_inflight(id, index)
  correct_charge(was_claimed)
  if not was_claimed then
    -- The slice was given back meanwhile, and its batch was paused or reordered.
    local pending = pending_key(id, plan, words(lanes), lane)
    if redis.call('ZREM', pending, index) == 1 and redis.call('ZCARD', pending) == 0 then
      stop_waiting(lane, id)
    end
  end
end

local function record_dead_rows()
  if #ARGV < DEAD_ROWS_FROM then return end
  for i = DEAD_ROWS_FROM, #ARGV, 2 do
    redis.call('HSET', ns .. 'dead-rows', ARGV[i], ARGV[i + 1])
    redis.call('ZADD', ns .. 'dead-rows-since', int(now_ms), ARGV[i])
  end
  for _, oldest in ipairs(redis.call('ZRANGE', ns .. 'dead-rows-since', 0, -1 - MAX_DEAD_ROWS)) do
    redis.call('ZREM', ns .. 'dead-rows-since', oldest)
    redis.call('HDEL', ns .. 'dead-rows', oldest)
  end
end

local function count_for_job()
  redis.call('HINCRBY', lane_key(lane, 'job'), 'rows', rows)
  redis.call('HINCRBY', lane_key(lane, 'job'), 'slices', 1)
  learn_start(lane)
  -- Any result shows that the engine works, and resets its count of deaths in a row.
  local dead_rows = math.max(0, #ARGV - DEAD_ROWS_FROM + 1) / 2
  if rows > dead_rows then redis.call('HDEL', lane_key(lane, 'job'), 'deaths') end
end

if recorded == part then return 'ok' end
local refused = refusal()
if refused then
  sweep_late_part()
  return refused
end
end_claim()
count_for_job()
record_dead_rows()
local usage = {}
for i = 1, #COUNTERS do usage[i] = ARGV[COUNTS_BEFORE + i] end
local committed = record_part(id, lane, lanes, index, part, usage)
if announcement ~= '' then
  local sequence, snapshot = next_event(id)
  write_to_outbox('slice.committed', sequence, int(now_ms), snapshot, 'slice', announcement)
end
if status == 'in_progress' then
  local values = redis.call('HMGET', key, 'slices_total', 'slices_given_up')
  local is_done = committed + tonumber(values[2] or 0) == tonumber(values[1])
  if is_done and not takes_rows(id) then
    learn_end(lane, id)
    transition(id, 'rows_finished')
  else
    -- Until it has more rows, no lane job is kept for it.
    if is_done then redis.call('ZREM', lane_key(lane, 'active'), id) end
    report_progress(id)
  end
elseif redis.call('SCARD', inflight) == 0 then
  ring('dispatcher')
end
return 'ok'
