-- Whether a batch without a record here has ended and left for S3.
local function is_away(id)
  return redis.call('EXISTS', batch_key(id)) == 0 and redis.call('ZSCORE', ns .. 'endings', id) ~= false
end
