-- needs: event, open, progress, quota, slice, waiting, transition
-- Takes the next addition to an open batch, or closes it with the last one. S3 has it by now.
-- ARGV: batch id, the addition's number, a JSON object: `slices` (as the plan keeps them), `rows`,
-- `bytes`, `tokens`, `prompt_tokens`, `sequences`, `is_last`; then name and line of each row, as digests
-- Returns 'ok' (also if it has been taken before), 'early' if one before it has not been taken,
-- 'missing', or the status in which no rows are taken.
local id, key, number, added = ARGV[1], batch_key(ARGV[1]), tonumber(ARGV[2]), cjson.decode(ARGV[3])
local NAMES_FROM = 4
local batch = redis.call('HMGET', key, 'status', 'additions', 'plan', 'lane', 'slices_total', 'paused',
  'created_at', 'lane_tokens')
local status, taken, plan, lane = batch[1], tonumber(batch[2] or 0), batch[3], batch[4]
if not status then return 'missing' end
if number < taken then return 'ok' end
if status ~= 'in_progress' or not takes_rows(id) then return status end
if number > taken then return 'early' end

local function add_slices()
  local pending = pending_key(id, plan, {lane}, lane)
  for i, slice in ipairs(added.slices) do
    local index = int(tonumber(batch[5]) + i - 1)
    redis.call('HSET', plan_key(id, plan), index, slice)
    redis.call('ZADD', pending, index, index)
  end
  redis.call('SADD', ns .. 'lanes', lane)
  if batch[6] then return end
  redis.call('ZADD', lane_key(lane, 'active'), batch[7], id)
  start_waiting(lane, id)
end

-- In the record, and in the tenant's queue, which the batch leaves with what it has by then.
local function count()
  local tokens, rows = string.match(batch[8], '(%d+)/(%d+)')
  count_in_queue(id, -1)
  redis.call('HINCRBY', key, 'total', added.rows)
  redis.call('HINCRBY', key, 'size', added.bytes)
  redis.call('HINCRBY', key, 'slices_total', #added.slices)
  redis.call('HINCRBY', key, 'queued_requests', added.sequences)
  redis.call('HINCRBY', key, 'prompt_tokens', added.prompt_tokens)
  redis.call('HSET', key, 'lane_tokens', int(tokens + added.tokens) .. '/' .. int(rows + added.rows))
  count_in_queue(id, 1)
end

local function close()
  redis.call('HSET', key, 'closed', 1)
  announce(id, 'batch.updated')
  local values = redis.call('HMGET', key, 'slices_total', 'slices_committed')
  if tonumber(values[1]) == tonumber(values[2] or 0) then transition(id, 'rows_finished') end
end

redis.call('HSET', key, 'additions', int(number + 1))
for i = NAMES_FROM, #ARGV, 2 do redis.call('HSET', ns .. 'names:' .. id, ARGV[i], ARGV[i + 1]) end
if added.is_last then
  close()
else
  add_slices()
  count()
  report_progress(id)
end
ring('dispatcher')
return 'ok'
