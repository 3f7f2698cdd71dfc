-- Gives back the slices whose claims ran out. ARGV: lane, '1' to take all claims as run out
-- Returns how many, at most 100.
local limit = ARGV[2] == '1' and '+inf' or int(now_ms)
local members = redis.call('ZRANGEBYSCORE', lane_key(ARGV[1], 'claims'), '-inf', limit, 'LIMIT', 0, 100)
for _, member in ipairs(members) do
  local id, index = string.match(member, '^(.*):(%d+)$')
  give_back(ARGV[1], id, index, ARGV[2] == '1' and 'job_ended' or 'claim_expired')
end
return #members
