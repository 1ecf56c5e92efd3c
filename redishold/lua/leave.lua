-- KEYS: slot …, line, watchers. ARGV: watcher
local watchers = KEYS[#KEYS]
if redis.call('LREM', watchers, 1, ARGV[1]) == 1 then return 0 end
-- It had been woken. If it did not take the key, the hint is for the next one.
local s = load(1)
if not (s and free(s) > now) then wake(watchers) end
return 1
