-- Makes a file that S3 has a record of. ARGV: file (JSON)
-- Returns 1, or 0 when it is there.
local file = cjson.decode(ARGV[1])
-- An older state may have it as reserved, which would have it swept.
for _, set in ipairs({'garbage', 'doomed'}) do redis.call('ZREM', ns .. set, file.key, file.key .. '.json') end
if redis.call('EXISTS', ns .. 'file:' .. file.id) == 1 then return 0 end
write_file(file, true)
return 1
