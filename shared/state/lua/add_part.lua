-- needs: stored, upload
-- Records a part of an upload, once.
-- ARGV: upload id, part id, part (JSON), its bytes, max bytes of all parts, max parts,
-- max bytes of the tenant
-- Returns 'ok', 'full', 'too_much' for the tenant, 'missing', or the upload's status if it is not pending.
local key, parts = ns .. 'upload:' .. ARGV[1], ns .. 'upload_parts:' .. ARGV[1]
local max_bytes, max_parts = tonumber(ARGV[5]), tonumber(ARGV[6])
local status = upload_status(ARGV[1])
if status ~= 'pending' then return status or 'missing' end
if redis.call('HEXISTS', parts, ARGV[2]) == 1 then return 'ok' end
local values = redis.call('HMGET', key, 'tenant', 'stored')
local stored = tonumber(values[2] or 0) + tonumber(ARGV[4])
if stored > max_bytes or redis.call('HLEN', parts) >= max_parts then return 'full' end
if is_too_much(values[1], tonumber(ARGV[4]), ARGV[7]) then return 'too_much' end
redis.call('HSET', parts, ARGV[2], ARGV[3])
add_stored(values[1], tonumber(ARGV[4]))
redis.call('HSET', key, 'stored', int(stored))
return 'ok'
