-- Makes the batches whose inputs and manifests lie in one pack, each as `accept` does; one that brings
-- its plan starts at once if its tenant's queue has room.
-- ARGV: the pack's prefix, which was reserved ('' if all batches are known); then a JSON object a batch:
-- id, fingerprint, fields (none for one that is known), and perhaps file, reply, start {plan, lane,
-- slices, fields, requests, tokens}
-- Returns for each 'accepted', 'started', 'duplicate', 'conflict', or 'gone' where it would be new and
-- the reservation is over.
local prefix = ARGV[1]
local is_kept = redis.call('ZREM', ns .. 'garbage', prefix) == 1
local outcomes, is_used = {}, false

local function start(id, wish)
  if full_queue(id, wish.fields, wish.requests, wish.tokens) then return false end
  local pending = pending_key(id, wish.plan, {wish.lane}, wish.lane)
  for i, slice in ipairs(wish.slices) do
    redis.call('HSET', ns .. 'plan:' .. id .. ':' .. wish.plan, i - 1, slice)
    redis.call('ZADD', pending, i - 1, i - 1)
  end
  -- Number and time are those that a rebuild finds out: the second event, at once.
  local pin = pin_of('2', redis.call('HGET', batch_key(id), 'created_at') .. '000')
  return transition(id, 'input_accepted', wish.fields, pin) == 'ok'
end

for i = 2, #ARGV do
  local wish = cjson.decode(ARGV[i])
  local outcome = 'gone'
  if (is_kept and #wish.fields > 0) or redis.call('EXISTS', batch_key(wish.id)) == 1 then
    outcome = accept_batch(wish.id, wish.fingerprint, wish.fields, wish.file, nil, wish.reply)
  end
  if outcome == 'accepted' then
    is_used = true
    if wish.start and start(wish.id, wish.start) then outcome = 'started' end
  end
  outcomes[#outcomes + 1] = outcome
end
if is_kept and not is_used then redis.call('ZADD', ns .. 'garbage', now, prefix) end
return outcomes
