-- KEYS: slot …, watchers. ARGV: watcher, channel, cluster
local line = KEYS[#KEYS]
if redis.call('LREM', line, 1, ARGV[1]) == 1 then return 0 end
-- It had been woken. If it did not take the key, the hint is for the next one.
local s = load(1)
if not (s and free(s) > now) then wake(line, ARGV[2], ARGV[3]) end
return 1
