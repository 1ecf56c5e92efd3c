-- KEYS: slot …, watchers. ARGV: watcher, whether to the front, ms to live. Answers whether the key is free.
local line = KEYS[#KEYS]
redis.call('PEXPIRE', line, ARGV[3])  -- first, so that who lacks the right leaves no line without expiry
if not redis.call('LPOS', line, ARGV[1]) then
  redis.call(ARGV[2] == '1' and 'LPUSH' or 'RPUSH', line, ARGV[1])
end
redis.call('PEXPIRE', line, ARGV[3])
local s = load(1)
if s and free(s) > now then return 0 end
return 1
