-- needs: file, stored
-- Makes a file visible. ARGV: file (JSON), '1' if its objects were reserved, max
-- bytes of the tenant ('' for no limit)
-- Returns 'ok', 'swept' when the reservation has ended and the objects are being removed, or the bytes
-- that are stored when there are too many with it.
local file = cjson.decode(ARGV[1])
local is_new = redis.call('EXISTS', ns .. 'file:' .. file.id) == 0
if is_new and is_too_much(file.tenant, file.bytes, ARGV[3]) then
  return int(stored_bytes(file.tenant))
end
if ARGV[2] == '1' and not keep_objects(file) then return 'swept' end
write_file(file)
return 'ok'
