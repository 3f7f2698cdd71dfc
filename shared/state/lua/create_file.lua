-- needs: file
-- Makes a file visible. ARGV: file (JSON), '1' if its objects were reserved
-- Returns 1, or 0 when the reservation has ended and the objects are being removed.
local file = cjson.decode(ARGV[1])
if ARGV[2] == '1' and not keep_objects(file) then return 0 end
write_file(file)
return 1
