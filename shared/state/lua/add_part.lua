-- needs: upload
-- Records a part of an upload, once.
-- ARGV: upload id, part id, part (JSON), its bytes, max bytes of all parts, max parts
-- Returns 'ok', 'full', 'missing', or the upload's status if it is not pending.
local key, parts = ns .. 'upload:' .. ARGV[1], ns .. 'upload_parts:' .. ARGV[1]
local max_bytes, max_parts = tonumber(ARGV[5]), tonumber(ARGV[6])
local status = upload_status(ARGV[1])
if status ~= 'pending' then return status or 'missing' end
if redis.call('HEXISTS', parts, ARGV[2]) == 1 then return 'ok' end
local stored = tonumber(redis.call('HGET', key, 'stored') or 0) + tonumber(ARGV[4])
if stored > max_bytes or redis.call('HLEN', parts) >= max_parts then return 'full' end
redis.call('HSET', parts, ARGV[2], ARGV[3])
redis.call('HSET', key, 'stored', int(stored))
return 'ok'
