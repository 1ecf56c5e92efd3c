-- The common case, before the rest of the script sets anything up: the term stands, nothing stands beside it, and the key is
-- free at once. Everything else is left to release.lua.
do
  local s = redis.call('GET', KEYS[1])
  local sub = string.sub
  if s and sub(s, 1, 3) == '1H-' and sub(s, 52, 83) == ARGV[1] and ARGV[2] == '0' and ARGV[4] == '0' and sub(s, -1) == '\n' then
    local time = redis.call('TIME')
    local now = time[1] .. sub('00000' .. time[2], -6)
    local free = sub(s, 4, 19)
    if #time[1] == 10 and free > now and free <= '9999999999999999' then -- and no letters
      local r = redis.pcall('SET', KEYS[1], '1R-0000000000000000' .. sub(s, 20, 35) .. ARGV[3] .. ARGV[1] .. 'n\n\n\n\n', 'PX', 86400000)
      if not r.err then return {'K'} end
    end
  end
end
