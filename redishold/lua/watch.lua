-- KEYS: slot …, line, watchers. ARGV: watcher, whether to the front, ms to live. Answers whether the key is free.
local watchers = KEYS[#KEYS]
redis.call('PEXPIRE', watchers, ARGV[3])  -- first, so that who lacks the right leaves no list without expiry
if not redis.call('LPOS', watchers, ARGV[1]) then
  redis.call(ARGV[2] == '1' and 'LPUSH' or 'RPUSH', watchers, ARGV[1])
end
redis.call('PEXPIRE', watchers, ARGV[3])
local s = load(1)
-- Whoever frees the key has to know that somebody watches.
local kept = redis.call('GET', KEYS[1])
if not kept then
  put(KEYS[1], '1N+' .. digits(0) .. digits(0) .. digits(0) .. format('%032d', 0) .. 'n\n\n\n\n')
elseif sub(kept, 1, 1) == '1' and beside(kept) ~= '+' then
  redis.call('SETRANGE', KEYS[1], 2, '+')
end
if s and free(s) > now then return 0 end
return 1
