-- ARGV: file (JSON), '1' if its objects were reserved
-- Returns 1, or 0 when the reservation is over and they are being removed.
local file = cjson.decode(ARGV[1])
if ARGV[2] == '1' and not keep(file) then return 0 end
write_file(file)
return 1
