-- KEYS: slot and line of each place. ARGV: process, then place and TTL in µs of each. Answers for each: G and the grant, which
-- is confirmed; W, where it stands and µs that are left of the present term; U if it is unknown.
local known, alive = {}, {}
for i = 1, #KEYS, 2 do
  local p = (ALIVE or KEYS[i] .. ':p:') .. ARGV[1]
  if not alive[p] then redis.call('SET', p, '', 'PX', SILENT) end
  alive[p] = true
end

-- look returns the slot of a key after whoever is next in line has got it if it is free.
local function look(slot, line)
  local s = known[slot]
  if s == nil then
    s = redis.call('GET', slot)
    if not s or sub(s, 1, 1) == '1' and free(s) <= now then s = promote(slot, line, s) or s end
    if refused then error(refused) end
  end
  known[slot] = s
  return s
end

-- stands returns where a place stands in its line, or nil, or the server's error. LPOS walks through the line, which for each of many who
-- stand in one line would be the square of their number. They come in their order, so from the second of them on, what stands behind one
-- is read with it.
local BEHIND = 255
local asked, index, rearmed = {}, {}, {}
local function stands(line, place)
  local at = index[line]
  if at and at[place] then return at[place] end
  local n = redis.pcall('LPOS', line, place)
  if type(n) ~= 'number' then return n end
  if asked[line] then
    local some = redis.pcall('LRANGE', line, n, n + BEHIND)
    if some.err then return some end
    at = at or {}
    index[line] = at
    for i = 1, #some do at[some[i]] = n + i end
  end
  asked[line] = true
  return n + 1
end

-- attend answers about the place whose keys are at i.
local function attend(i)
  local place, ttl = ARGV[i + 1], tonumber(ARGV[i + 2])
  local slot, line = KEYS[i], KEYS[i + 1]
  local s = look(slot, line)
  if s and sub(s, 1, 1) ~= '1' then
    return {'V', sub(s, 1, 20)}
  elseif s and holds(s, sub(place, 1, 32)) and state(s) == 'H' then
    if now + ttl > free(s) then
      s = sub(s, 1, 3) .. digits(now + ttl) .. sub(s, 20)
      put(slot, s, true)
      known[slot] = s
    end
    local _, _, before = texts(s)
    return {'G', sub(s, 20, 35), sub(s, 84, 84), before}
  end
  local n = stands(line, place)
  if type(n) == 'table' and not find(n.err, 'WRONGTYPE', 1, true) then return n end
  if type(n) ~= 'number' then return {'U'} end  -- also where something else stands in the place of the line: an enqueue is told of that
  if not rearmed[line] then redis.call('PEXPIRE', line, LINE) end
  rearmed[line] = true
  if s and beside(s) ~= '+' then redis.call('SETRANGE', slot, 2, '+') end
  return {'W', tostring(n), digits(s and free(s) - now or 0)}
end

local out = {}
for i = 1, #KEYS, 2 do
  local answer, refused = apart(attend, i)
  if refused then return answer end
  out[#out + 1] = answer
end
return out
