-- needs: file
-- Writes a file that has a record in S3. ARGV: file (JSON). Returns 1, or 0 when it exists.
local file = cjson.decode(ARGV[1])
-- An older Redis may have its objects as reserved, and would sweep them.
for _, set in ipairs({'garbage', 'doomed'}) do redis.call('ZREM', ns .. set, file.key, file.key .. '.json') end
if redis.call('EXISTS', ns .. 'file:' .. file.id) == 1 then return 0 end
write_file(file, true)
return 1
