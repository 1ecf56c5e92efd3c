-- The common case, before the rest of the script sets anything up: the key is free since a release, or was never had, and
-- nothing stands beside it. Everything else is left to acquire.lua. Numbers of 16 digits compare as text.
do
  local s, time = redis.call('GET', KEYS[1]), redis.call('TIME')
  local sub = string.sub
  local now = time[1] .. sub('00000' .. time[2], -6)
  -- A clock that is far off has other than ten digits, or leaves no tokens.
  if #time[1] == 10 and now < '9007199250000000' and (not s or #s == 88 and sub(s, 1, 3) == '1R-' and sub(s, 4, 19) <= now and sub(s, 52, 83) ~= ARGV[1] and sub(s, 20, 35) < now) then
    local us, t = time[1] * 1000000 + time[2], now
    if ARGV[3] + 0 > us then t = string.format('%016.0f', math.min(ARGV[3] + 0, us + 1000000)) end
    local ending = s and 'r' or 'n'
    redis.call('SET', KEYS[1], '1H-' .. string.format('%016.0f', us + ARGV[2]) .. t .. now .. ARGV[1] .. ending ..
      '\n' .. ARGV[4] .. '\n\n\n', 'PX', math.ceil(ARGV[2] / 1000) + 86400000)
    return {'G', t, ending, ''}
  end
end
