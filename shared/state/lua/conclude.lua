-- Ends a batch with its files, in one step. ARGV: batch id, event, files (JSON list),
-- fields (JSON list), prefix of objects that nobody needs after it ('' for none), objects and prefixes
-- that nobody needs a day later (JSON list), number and time of its event ('' for the next and now)
local row = TRANSITIONS[ARGV[2]]
local pin = pin_of(ARGV[7], ARGV[8])
local values = redis.call('HMGET', batch_key(ARGV[1]), 'status', 'sequence')
local status = values[1]
if status and row.sources[status] then
  if pin and tonumber(values[2] or 0) >= tonumber(pin.sequence) then return 'moved' end
  if redis.call('SCARD', ns .. 'inflight:' .. ARGV[1]) > 0 then return 'inflight' end
  for _, file in ipairs(cjson.decode(ARGV[3])) do write_file(file) end
  discard(ARGV[5], cjson.decode(ARGV[6]))
end
return transition(ARGV[1], ARGV[2], cjson.decode(ARGV[4]), pin)
