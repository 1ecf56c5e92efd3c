-- ARGV: nonce, TTL in µs, floor, holder
local mine, ttl, floor = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last, ending, prior, undone = 0, 'n', '', ''
local s = load(1)
if s then
  if sub(s, 1, 1) ~= '1' then return {'V'} end
  local st = state(s)
  if holds(s, mine) and st == 'H' then -- the reply was lost: the caller counts from this try
    if now + ttl > free(s) then
      s = sub(s, 1, 2) .. digits(now + ttl) .. sub(s, 19)
      save(1, s)
    end
    local _, _, before = texts(s)
    return {'G', sub(s, 19, 34), sub(s, 83, 83), before}
  end
  if find(s, mine, 84, true) or nonce(s) == mine and st == 'R' then return {'U'} end
  if free(s) > now then return {'H', digits(now), s} end
  last = token(s)
  local holder, broken, _, gone = texts(s)
  undone = live(gone)
  if st == 'R' then
    ending = 'r'
  elseif st == 'H' or st == 'B' then
    ending = st == 'H' and 'l' or 'b'
    prior = sub(s, 19, 50) .. holder .. '\t' .. broken
  end
end
local t = math.max(last + 1, now, math.min(floor, now + 1000000))
if t > 9007199254740991 then return {'X'} end
save(1, '1H' .. digits(now + ttl) .. digits(t) .. digits(now) .. mine .. ending ..
  '\n' .. ARGV[4] .. '\n\n' .. prior .. '\n' .. undone)
return {'G', digits(t), ending, prior}
