-- needs: away, deaths, quota, rate, stored
-- Counts a new batch of a tenant if it may be created now. A batch that exists is not counted.
-- ARGV: tenant, batch id, bytes that it brings, then limits: new batches, microseconds in which they
-- may come, enqueued requests, stored bytes ('' for none), engine deaths today ('' for none), batches that
-- are kept ('' for none); then pairs: a model that could run it, max enqueued prompt tokens of that model
-- Returns {'known', fingerprint}, {'away'} for a batch that has to come back first, {'ok'}, {'wait', microseconds, microseconds until all are free}, or
-- the limit that is reached, with what is used of it: {'requests'}, {'tokens'} if that is so for every
-- model, {'kept_batches'}, {'stored_bytes'}, or {'engine_deaths'} with the seconds that are left of the day.
local tenant, id, MODELS_FROM = ARGV[1], ARGV[2], 10
local fingerprint = redis.call('HGET', batch_key(id), 'fingerprint')
if fingerprint then return {'known', fingerprint} end
if is_away(id) then return {'away'} end
local requests = queue_size(tenant, '')
if requests >= tonumber(ARGV[6]) then return {'requests', requests} end
local are_full, least = #ARGV >= MODELS_FROM, math.huge
for i = MODELS_FROM, #ARGV, 2 do
  local _, tokens = queue_size(tenant, ARGV[i])
  are_full = are_full and tokens >= tonumber(ARGV[i + 1])
  least = math.min(least, tokens)
end
if are_full then return {'tokens', least} end
local kept = redis.call('ZCARD', ns .. 'batches:' .. tenant)
if ARGV[9] ~= '' and kept >= tonumber(ARGV[9]) then return {'kept_batches', kept} end
-- The results of a batch are kept wherever they lead, so a tenant without room makes no more of them.
if is_too_much(tenant, math.max(1, tonumber(ARGV[3])), ARGV[7]) then
  return {'stored_bytes', stored_bytes(tenant)}
end
if ARGV[8] ~= '' and deaths_today(tenant) >= tonumber(ARGV[8]) then
  return {'engine_deaths', deaths_today(tenant), DAY_SECONDS - now % DAY_SECONDS}
end
local count = ns .. 'calls:batches:' .. tenant
local wait, _, reset, mark = rate_status(count, tonumber(ARGV[4]), tonumber(ARGV[5]))
if wait > 0 then return {'wait', wait, reset} end
count_call(count, mark)
return {'ok'}
