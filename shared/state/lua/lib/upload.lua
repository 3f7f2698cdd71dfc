-- The upload's status, nil if there is none. A pending upload expires at once, before the reaper
-- comes.
local function upload_status(id)
  local values = redis.call('HMGET', ns .. 'upload:' .. id, 'status', 'expires_at', 'held_until')
  local ends = math.max(tonumber(values[2] or 0), tonumber(values[3] or 0))
  if values[1] == 'pending' and now >= ends then return 'expired' end
  return values[1] or nil
end
