-- KEYS: the records of a day. ARGV: s to keep them, then for each: lock, the record it was made from, the new record.
-- Answers the numbers of those that have changed meanwhile; the others are written.
local late = {}
for i = 2, #ARGV, 3 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') == ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  else
    late[#late + 1] = (i - 2) / 3
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return late
