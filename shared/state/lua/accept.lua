-- needs: acceptance
-- Creates the batch as `validating`, with its events, once.
-- ARGV: batch id, fingerprint, fields (JSON list), input file (JSON or ''), submission (JSON or ''),
-- whom to reply to (JSON or '')
-- Returns 'accepted', 'duplicate', 'conflict' or 'away'.
local input_file = ARGV[4] ~= '' and cjson.decode(ARGV[4]) or nil
local submission = ARGV[5] ~= '' and ARGV[5] or nil
local reply_to = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or nil
return accept_batch(ARGV[1], ARGV[2], cjson.decode(ARGV[3]), input_file, submission, reply_to)
