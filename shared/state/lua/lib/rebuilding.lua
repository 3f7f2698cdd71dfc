-- Whether the index is being rebuilt from S3.
local function is_rebuilding() return redis.call('EXISTS', ns .. 'rebuilding') == 1 end
