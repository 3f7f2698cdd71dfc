-- needs: lifecycle, event, quota, slice, waiting, scores, file, pack, restore
-- Writes a batch that has not ended as S3 knows it. Its slices and parts are written already.
-- ARGV: batch id, and a JSON object: `status`, `stages` (field and value pairs of each change, with
-- the kind, number and time of its event if it has one), `last` (the event of the status, or ''),
-- `base` (larger than the number of any event), `input_file`, `left` and `pending` (slices by lane)
-- Returns 'made', 'mended' or 'ended': a batch that has ended is not changed.
local id, restored, key = ARGV[1], cjson.decode(ARGV[2]), batch_key(ARGV[1])
local old = redis.call('HMGET', key, 'status', 'sequence')
local old_status, old_sequence = old[1], tonumber(old[2] or 0)
if old_status and FINAL[old_status] then return 'ended' end

local function new_plan()
  for _, stage in ipairs(restored.stages) do
    for i = 1, #stage.fields, 2 do
      if stage.fields[i] == 'plan' then return stage.fields[i + 1] end
    end
  end
end

local function write_record()
  redis.call('DEL', key)
  for _, stage in ipairs(restored.stages) do
    redis.call('HSET', key, unpack(stage.fields))
    if stage.kind ~= '' and stage.sequence > old_sequence then
      announce(id, stage.kind, pin_of(stage.sequence, stage.at_ms))
    end
  end
  redis.call('HSET', key, 'sequence', int(restored.base))
end

local function write_indexes(tenant, input_file_id, expires_at, created_at)
  local index = ns .. 'batches:' .. tenant
  redis.call('ZADD', index, 'NX', past_score(index, tonumber(created_at), id), id)
  redis.call('ZADD', ns .. 'status:' .. restored.status, now, id)
  redis.call('ZADD', ns .. 'deadlines', expires_at, id)
  redis.call('SADD', ns .. 'readers:' .. input_file_id, id)
end

local function join_lanes(lanes, plan, is_paused, created_at)
  redis.call('PERSIST', plan_key(id, plan))
  for _, lane in ipairs(lanes) do
    redis.call('PERSIST', pending_key(id, plan, lanes, lane))
    redis.call('SADD', ns .. 'lanes', lane)
    if restored.status == 'in_progress' and not is_paused and restored.left[lane] > 0 then
      redis.call('ZADD', lane_key(lane, 'active'), created_at, id)
      if restored.pending[lane] > 0 then start_waiting(lane, id) end
    end
  end
  if restored.status == 'in_progress' then count_in_queue(id, 1) end
end

local input_file = restored.input_file ~= '' and restored.input_file or nil
if old_status then detach(id, new_plan()) end
write_record()
keep_pack(id, input_file)
local values = redis.call('HMGET', key, 'tenant', 'input_file_id', 'expires_at', 'created_at', 'lane',
  'plan', 'paused')
write_indexes(values[1], values[2], values[3], values[4])
if input_file then write_file(input_file, true) end
if values[6] then join_lanes(words(values[5]), values[6], values[7], values[4]) end
if restored.last ~= '' and old_status ~= restored.status then announce(id, restored.last) end
ring('dispatcher')
return old_status and 'mended' or 'made'
