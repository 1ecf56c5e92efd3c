-- Declares a node of a new quorum fresh for the run of the server that answers now. KEYS: mark. ARGV: its text, with @ for
-- the time; for how long, ms. Answers 0 if there is a mark.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local text = string.gsub(ARGV[1], '@', now, 1)
if redis.call('SET', KEYS[1], text, 'NX', 'PX', ARGV[2]) then return 1 end
return 0
