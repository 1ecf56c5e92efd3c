-- Gives up requests of one lock: release, which is release.lua, for many of them. KEYS: slot, line, watchers. ARGV: the id of this call, then
-- for each its nonce, 1 if it may still arrive, else 2, and its place. They come in the order in which they took places, so that
-- each is found near the head of the line: those before it that are given up are gone by then.
local s = load(1)
if s and sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
local tombs, mine, undo = {}, nil, nil
local searched = true
for i = 2, #ARGV, 3 do
  local n = ARGV[i]
  if searched then
    local r = redis.pcall('LREM', KEYS[2], 1, ARGV[i + 2])
    if type(r) == 'table' then
      if not find(r.err, 'WRONGTYPE', 1, true) then return r end
      searched = false  -- nobody stands there
    end
  end
  if s and holds(s, n) then
    mine, undo = n, ARGV[i + 1]
  elseif ARGV[i + 1] == '1' and not (s and find(s, n, 85, true)) then
    tombs[#tombs + 1] = n .. digits(now + UNDONE * 1000)
  end
end
if #tombs > 0 then
  local new = table.concat(tombs)
  if s then
    local holder, broken, prior, undone = texts(s)
    s = sub(s, 1, 84) .. '\n' .. holder .. '\n' .. broken .. '\n' .. prior .. '\n' .. live(undone .. new)
  else
    s = none(live(new))
  end
  put(KEYS[1], s, true)
end
if mine then return release({mine, '0', ARGV[1], undo}) end
if not s or free(s) <= now and beside(s) == '+' then promote(KEYS[1], KEYS[2], s) end
return {'K', refused and refused.err}
