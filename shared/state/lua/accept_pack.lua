-- needs: acceptance, away, event, quota, slice, transition
-- Creates the batches whose manifests are in one pack, each as `accept` does. A batch that
-- brings its plan starts at once if its tenant's queue has room.
-- ARGV: the pack's reserved prefix ('' if all batches exist), the ids of batches of the same pack that
-- calls before this one were about, then a JSON object for each batch: id, fingerprint, fields (empty
-- for a batch that exists), and optionally file, submission, reply, start {plan, lane, slices, fields,
-- requests, tokens}
-- Returns for each 'accepted', 'started', 'duplicate', 'conflict', 'away', 'gone' if it would be new
-- but the reservation has ended, or 'failed: ' with Redis's error, which fails no other batch.
local prefix = ARGV[1]
local is_reserved = redis.call('ZREM', ns .. 'garbage', prefix) == 1
local outcomes, is_used = {}, false

-- Whether the batch was made of this pack, which is kept for it.
local function has_used(id)
  for _, key in ipairs(redis.call('HMGET', batch_key(id), 'key', 'pack')) do
    if key and prefix ~= '' and string.sub(key, 1, #prefix) == prefix then return true end
  end
  return false
end

local is_kept = is_reserved
for _, id in ipairs(words(ARGV[2])) do is_kept = is_kept or has_used(id) end

local function start(id, params)
  if exceeded_quota(id, params.fields, params.requests, params.tokens) then return false end
  local pending = pending_key(id, params.plan, {params.lane}, params.lane)
  for i, slice in ipairs(params.slices) do
    redis.call('HSET', plan_key(id, params.plan), i - 1, slice)
    redis.call('ZADD', pending, i - 1, i - 1)
  end
  -- A rebuild gives this event the same number and time: the second event, in the second of creation.
  local pin = pin_of('2', redis.call('HGET', batch_key(id), 'created_at') .. '000')
  return transition(id, 'input_accepted', params.fields, pin) == 'ok'
end

local function accept(batch)
  local is_known = redis.call('EXISTS', batch_key(batch.id)) == 1 or is_away(batch.id)
  if not is_known and not (is_kept and #batch.fields > 0) then return 'gone' end
  local outcome = accept_batch(batch.id, batch.fingerprint, batch.fields, batch.file, batch.submission,
    batch.reply)
  if outcome ~= 'accepted' then return outcome end
  is_used = true
  if batch.start and start(batch.id, batch.start) then return 'started' end
  return 'accepted'
end

-- A batch that fails half-way is taken back, as far as that matters: nobody will run it or meet it.
local function accept_alone(batch)
  local is_known = redis.call('EXISTS', batch_key(batch.id)) == 1
  local is_done, outcome = pcall(accept, batch)
  if is_done then return outcome end
  if not is_known then
    redis.call('DEL', batch_key(batch.id))
    for _, list in ipairs({'status:validating', 'deadlines'}) do
      redis.call('ZREM', ns .. list, batch.id)
    end
  end
  return 'failed: ' .. (type(outcome) == 'table' and outcome.err or tostring(outcome))
end

for i = 3, #ARGV do outcomes[#outcomes + 1] = accept_alone(cjson.decode(ARGV[i])) end
if is_reserved and not is_used then redis.call('ZADD', ns .. 'garbage', now, prefix) end
return outcomes
