-- KEYS: slot …. ARGV: nonce, TTL in µs, floor, or = and the token that the term has at other stores, holder, and the place to take in line if it is to wait
-- The line is named here and not among KEYS, so that a key without one can be had while its slot of a Cluster moves.
local mine, ttl, place = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local seed, floor = match(ARGV[3], '^(=?)(%d+)$')
floor = tonumber(floor)
local last, ending, prior, undone, flag = 0, 'n', '', '', '-'
local line = KEYS[1] .. ':q'
local s = load(1)
if s then
  if sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
  flag = beside(s)
  if flag == '+' and free(s) <= now and STRIDE == 1 then s = promote(KEYS[1], line, s) or s end
  if refused then return refused end
  if holds(s, mine) and state(s) == 'H' then -- the reply was lost: the caller counts from this try
    if now + ttl > free(s) then
      s = sub(s, 1, 3) .. digits(now + ttl) .. sub(s, 20)
      save(1, s)
    end
    local _, _, before = texts(s)
    return {'G', sub(s, 20, 35), sub(s, 84, 84), before}
  end
  if find(s, mine, 85, true) or nonce(s) == mine and state(s) == 'R' then return {'U'} end
  if free(s) > now then
    if not place or place == '' then return {'H', digits(now), s} end
    local n = redis.pcall('LPOS', line, place)
    if type(n) == 'table' then
      if find(n.err, 'WRONGTYPE', 1, true) then return {'L'} end
      return n
    end
    -- Whoever stands in line has to be able to pass the key on, and to leave.
    for _, c in ipairs({{'LPOP', line, 0}, {'LREM', line .. ':none', 0, ''}, {'LRANGE', line, 1, 0}}) do
      local may = redis.pcall(unpack(c))
      if type(may) == 'table' and may.err then return {err = may.err .. ' (' .. c[1] .. ')'} end
    end
    redis.call('PEXPIRE', line, LINE)  -- before, so that who lacks the right leaves no line without expiry
    if flag ~= '+' then redis.call('SETRANGE', KEYS[1], 2, '+') end  -- likewise, so that no place stands there that no release looks for
    n = n and n + 1 or redis.call('RPUSH', line, place)
    redis.call('PEXPIRE', line, LINE)
    redis.call('SET', (ALIVE or KEYS[1] .. ':p:') .. sub(place, 33, 48), '', 'PX', SILENT)
    return {'H', digits(now), s, tostring(n)}
  end
  last = token(s)
  ending, prior, undone = after(s)
end
local t = math.max(last + 1, now, math.min(floor, now + 1000000))
if seed == '=' and (floor > last or s and floor == last and nonce(s) == mine) then t = floor end
if t > 9007199254740991 then return {'X'} end
t = digits(t)
save(1, '1H' .. flag .. digits(now + ttl) .. t .. digits(now) .. mine .. ending ..
  '\n' .. ARGV[4] .. '\n\n' .. prior .. '\n' .. undone)
return {'G', t, ending, prior}
