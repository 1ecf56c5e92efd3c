-- KEYS: key, mark. ARGV: token, lock, ms to keep the mark (0: for ever), command, its arguments after the key
local mark = redis.call('GET', KEYS[2])
if mark then
  local seen, lock = string.match(mark, '^(%d+) (.*)$')
  if lock ~= ARGV[2] or tonumber(seen) > tonumber(ARGV[1]) then return {'no', mark} end
end
mark = ARGV[1] .. ' ' .. ARGV[2]
if ARGV[3] == '0' then redis.call('SET', KEYS[2], mark) else redis.call('SET', KEYS[2], mark, 'PX', ARGV[3]) end
return {'ok', redis.call(ARGV[4], KEYS[1], unpack(ARGV, 5))}
