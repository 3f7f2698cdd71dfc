-- needs: lifecycle, event, file, garbage, transition
-- Ends a batch together with its files.
-- ARGV: batch id, event, files (JSON list), fields (JSON list), prefix of objects that nobody needs
-- after the end ('' for none), objects and prefixes that nobody needs a day later (JSON list), number
-- and time of its event ('' for the next number and now)
-- Returns what `transition` does, or 'inflight' while slices are claimed.
local id, row, pin = ARGV[1], TRANSITIONS[ARGV[2]], pin_of(ARGV[7], ARGV[8])
local values = redis.call('HMGET', batch_key(id), 'status', 'sequence')
if values[1] and row.sources[values[1]] then
  if pin and tonumber(values[2] or 0) >= tonumber(pin.sequence) then return 'moved' end
  if redis.call('SCARD', ns .. 'inflight:' .. id) > 0 then return 'inflight' end
  for _, file in ipairs(cjson.decode(ARGV[3])) do write_file(file) end
  discard(ARGV[5], cjson.decode(ARGV[6]))
end
return transition(id, ARGV[2], cjson.decode(ARGV[4]), pin)
