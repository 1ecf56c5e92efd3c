-- ARGV: nonce, TTL in µs, floor (0: none), for each slot
local function renew(i)
  local mine, ttl, floor = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local s = load(i)
  if not s then return {'g'} end
  if sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
  if nonce(s) ~= mine then
    local by = broke(KEYS[STRIDE * (i - 1) + 1], s, mine)
    return by and {'b', by} or {'g'}
  end
  local st = state(s)
  if st == 'B' then
    local _, broken = texts(s)
    return {'b', broken}
  end
  if st ~= 'H' or free(s) <= now then return {'g'} end
  local t = sub(s, 20, 35)
  if floor > 0 then
    if STRIDE == 2 then return {'n'} end
    if floor < tonumber(t) then return {'p', t} end
    t = digits(floor)
  end
  save(i, sub(s, 1, 3) .. digits(math.max(free(s), now + ttl)) .. t .. sub(s, 36), true)
  return {'G', t}
end

local out = {}
for i = 1, #KEYS / STRIDE do
  local answer, refused = apart(renew, i)
  if refused then return answer end
  out[i] = answer
end
return out
