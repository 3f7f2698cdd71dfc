-- needs: slice, give_back
-- Gives back slices whose claims ran out. ARGV: lane, '1' to treat all claims as run out
-- Returns how many; if it is MAX_CALL_ENTRIES, there may be more.
local is_all = ARGV[2] == '1'
local members = redis.call('ZRANGEBYSCORE', lane_key(ARGV[1], 'claims'), '-inf',
  is_all and '+inf' or int(now_ms), 'LIMIT', 0, MAX_CALL_ENTRIES)
for _, member in ipairs(members) do
  local id, index = split_member(member)
  give_back(ARGV[1], id, index, is_all and 'job_ended' or 'claim_expired')
end
return #members
