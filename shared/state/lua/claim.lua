-- needs: claim, slice
-- Claims the most urgent ready slices of a lane.
-- ARGV: lane, lane job, lease in ms, max slices, max rows, min rows, '1' if they begin at once, min
-- and max rows of their batch ('' for no max), '1' for those alone whose rows are answered already, then
-- ids of batches to pass over
-- Returns 'superseded' when the lane has another job. Otherwise the slices (JSON), up to the first one
-- with more rows than are left; none if fewer than the min rows are ready, or if the lane has failed.
-- Of those that are answered, 'full' if the first slice is one that has more rows than are left.
local lane, job, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local max_slices, rows_free, min_rows = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local has_begun, is_for_answered, PASSED_OVER_FROM = ARGV[7] == '1', ARGV[10] == '1', 11
local min_batch_rows, max_batch_rows = tonumber(ARGV[8]), tonumber(ARGV[9]) or math.huge
local ready = lane_key(lane, 'ready')
if redis.call('HGET', lane_key(lane, 'job'), 'id') ~= job then return 'superseded' end
if redis.call('EXISTS', lane_key(lane, 'failure')) == 1 then return '[]' end

local passed_over = {}
for i = PASSED_OVER_FROM, #ARGV do passed_over[ARGV[i]] = true end

-- Whether slices of a batch with so many rows are asked for. A batch whose rows nobody counted is large.
local function is_wanted(batch_rows)
  if batch_rows == 0 then batch_rows = math.huge end
  return batch_rows >= min_batch_rows and batch_rows <= max_batch_rows
end

-- Whether all rows of the slice seem to have their answers in its copy: each of these counts as a token.
local function seems_answered(text)
  local slice = cjson.decode(text)
  local copy = slice[8]
  if type(copy) ~= 'table' or slice[4] ~= slice[5] then return false end
  return copy[1]:sub(-8) == '-answers' or copy[1]:sub(-7) == '-errors'
end

-- Whether enough rows are ready. Slices of batches that have ended do not count, and are dropped.
local function has_enough()
  if min_rows <= 0 then return true end
  local rows = 0
  for _, member in ipairs(redis.call('ZRANGE', ready, 0, MAX_CALL_ENTRIES - 1)) do
    local id, index = split_member(member)
    local batch = redis.call('HMGET', batch_key(id), 'status', 'plan', 'total')
    if batch[1] == 'in_progress' then
      if is_wanted(tonumber(batch[3] or 0)) and not passed_over[id] then
        rows = rows + cjson.decode(redis.call('HGET', plan_key(id, batch[2]), index))[4]
        if rows >= min_rows then return true end
      end
    else
      redis.call('ZREM', ready, member)
    end
  end
  return false
end

if not has_enough() then return '[]' end
local granted = {}
-- Where so many others are ready an engine is wanted, which passes answers on as well.
local MOST_UNANSWERED = 16
-- How many slices at the head of the list stay where they are, because they are not asked for.
local passed = 0
for _ = 1, 2 * MAX_CALL_ENTRIES do
  if #granted == max_slices then break end
  local member = redis.call('ZRANGE', ready, passed, passed)[1]
  if not member then break end
  local is_passed_over = passed_over[split_member(member)]
  local found = not is_passed_over and find_runnable(member)
  if is_passed_over or (found and not is_wanted(found.batch_rows))
    or (found and is_for_answered and not seems_answered(found.slice)) then
    passed = passed + 1
    if is_for_answered and passed == MOST_UNANSWERED then break end
  elseif not found then
    redis.call('ZREM', ready, member)
  else
    if found.rows > rows_free then
      if is_for_answered and passed == 0 and #granted == 0 then return 'full' end
      break
    end
    rows_free = rows_free - found.rows
    granted[#granted + 1] = grant_claim(lane, job, lease_ms, ready, found, has_begun)
  end
end
if #granted > 0 then ring('dispatcher') end
return cjson.encode(granted)
