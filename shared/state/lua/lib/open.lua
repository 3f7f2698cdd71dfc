-- Whether the batch still takes rows. If all that it has are done, it waits for more.
local function takes_rows(id)
  local values = redis.call('HMGET', batch_key(id), 'open_model', 'closed')
  return values[1] and not values[2]
end
