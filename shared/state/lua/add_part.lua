-- ARGV: upload id, part id, part (JSON), its bytes, most bytes of all parts, most parts
-- Returns 'ok', 'full', 'missing', or the status that rules it out.
local key, parts = ns .. 'upload:' .. ARGV[1], ns .. 'upload_parts:' .. ARGV[1]
local status = upload_status(ARGV[1])
if status ~= 'pending' then return status or 'missing' end
if redis.call('HEXISTS', parts, ARGV[2]) == 1 then return 'ok' end
local stored = tonumber(redis.call('HGET', key, 'stored') or 0) + tonumber(ARGV[4])
if stored > tonumber(ARGV[5]) or redis.call('HLEN', parts) >= tonumber(ARGV[6]) then return 'full' end
redis.call('HSET', parts, ARGV[2], ARGV[3])
redis.call('HSET', key, 'stored', int(stored))
return 'ok'
