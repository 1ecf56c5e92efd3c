-- KEYS: slot, record and record if done of each job. ARGV: f for whole records, a for records without results, u likewise and only of jobs
-- that are not done. Answers for each: record, and 1 or 0, whether the term of its last run stands, or ? if its slot cannot be read;
-- nothing if there is none. A record that cannot be read is answered as it is.
local function part(key, from, to)
  local p = redis.pcall('GETRANGE', key, from, to)
  if type(p) ~= 'table' then return p end
  if find(p.err, 'WRONGTYPE', 1, true) then return '?' end
  return nil, p
end

-- look answers about the record that is in a key, or nothing if there is none or it has expired.
local function look(key, slot)
  local r, fail = part(key, 0, ARGV[1] == 'f' and -1 or 129)
  if fail then return nil, fail end
  if not (find(r, '^1[ORSD]') and #r >= 130 and not find(sub(r, 103, 122), '%D') and not find(sub(r, 7, 22), '%D')) then
    return (r ~= '' or redis.call('EXISTS', key) == 1) and {r, '0'} or nil
  end
  local expires = tonumber(sub(r, 7, 22))
  if expires > 0 and expires <= now then return nil end
  if ARGV[1] ~= 'f' then
    local n = sub(r, 103, 106) + sub(r, 107, 110) + sub(r, 111, 114) + sub(r, 115, 122)
    if n > 0 then r = r .. part(key, 130, 129 + n) end
    local all = 130 + n + (tonumber(sub(r, 123, 130)) or 0)
    if #part(key, all - 1, -1) ~= 1 then r = '?' end  -- the result has another length
  end
  if sub(r, 2, 2) ~= 'R' then return {r, '0'} end
  local s = redis.pcall('GET', slot)
  if type(s) == 'table' then
    if not find(s.err, 'WRONGTYPE', 1, true) then return nil, s end
    return {r, '?'}
  end
  if s and (sub(s, 1, 1) ~= '1' or not free(s)) then return {r, '?'} end
  return {r, s and holds(s, sub(r, 55, 86)) and '1' or '0'}
end

local out = {}
for i = 1, #KEYS, 3 do
  local one, fail
  if ARGV[1] ~= 'u' then one, fail = look(KEYS[i + 2], KEYS[i]) end
  if not (one or fail) then one, fail = look(KEYS[i + 1], KEYS[i]) end
  if fail then return fail end
  out[#out + 1] = one or {}
end
return out
