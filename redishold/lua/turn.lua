-- Takes and gives back several locks in one call. KEYS: the slots (on a Cluster, where there is one slot, what stands beside
-- it as well, so that the call goes to their node). ARGV, for each slot: see turn.go. Answers a text: the time, 16 digits, then
-- one word for each: n or r, granted with the time or the floor as its token, and how the term before ended; t and 16 digits, likewise,
-- after a release of the term with that token (TELL); K, given back; ? for whatever else is to be answered. If there is a ?, it answers a list of
-- that text and of those answers, of which one is ! and a text if the server has refused.
--
-- The common cases are decided here, before general sets anything up: the key is free since a release, or was never had, and
-- nothing stands beside it; it is held, and a place in line is wanted; the term stands, and the key is free at once or the next
-- in line gets it. See promote in common.lua for what is beside the slot. Numbers of 16 digits compare as text.
local ask, sub, format = redis.pcall, string.sub, string.format
local now = time[1] .. sub('00000' .. time[2], -6)
-- A clock that is far off has other than ten digits, or leaves no tokens.
local sane = #time[1] == 10 and now < '9007199250000000'

-- held says whether a slot holds a term that stands.
local function held(s)
  local free = sub(s, 4, 19)
  return sub(s, 1, 2) == '1H' and free > now and free <= '9999999999999999' -- there are no letters in it
end

-- enqueue takes a place at the end of the line. What fails is left to general, which finds what was done. A first request (N) stands
-- nowhere yet, so LPOS has to look at one place only: whether it may.
local function enqueue(key, a, s)
  local line, process, flag = key .. ':q', sub(a, 66, 81), sub(s, 3, 3)
  local place = sub(a, 2, 33) .. process .. sub(a, 34, 49) .. sub(a, 82)
  local may = ask('LPOP', line, '0')
  if may and may.err or ask('LREM', line .. ':none', '0', '') ~= 0 or ask('LRANGE', line, '1', '0').err or
    ask('LPOS', line, place, 'MAXLEN', sub(a, 1, 1) == 'W' and '0' or '1') or type(ask('PEXPIRE', line, '30000')) ~= 'number' then return nil end
  if flag ~= '+' and type(ask('SETRANGE', key, 2, '+')) ~= 'number' then return nil end
  local n = ask('RPUSH', line, place)
  if type(n) ~= 'number' then return nil end
  if type(ask('PEXPIRE', line, '30000')) ~= 'number' then return nil end
  if not ask('SET', (ALIVE or key .. ':p:') .. process, '', 'PX', '3000').ok then return nil end
  return {'H', now, s, tostring(n)}
end

local lasts, till, keep
local function take(key, a)
  local s = ask('GET', key)
  local what = sub(a, 1, 1)
  if what ~= 'A' and type(s) == 'string' and held(s) and not string.find(s, sub(a, 2, 33), 52, true) then -- nor is it undone
    return nil, enqueue(key, a, s)
  end
  local mine, token, floor = sub(a, 2, 33), now, sub(a, 50, 65)
  if floor > now then
    if sub(floor, 1, 10) ~= time[1] then -- it may lie too far ahead
      local horizon = format('%016.0f', time[1] * 1000000 + time[2] + 1000000)
      if floor > horizon then floor = horizon end
    end
    token = floor
  end
  if s then
    if type(s) ~= 'string' or #s ~= 88 or sub(s, 1, 3) ~= '1R-' or sub(s, 84, 84) ~= 'n' or sub(s, 4, 19) > now or sub(s, 20, 35) >= token or
      sub(s, 52, 83) == mine then return nil end
  end
  local ttl = sub(a, 34, 49)
  if ttl ~= lasts then
    lasts = ttl
    till = format('%016.0f', time[1] * 1000000 + time[2] + ttl)
    keep = ttl <= '0000003600000000' and '90000000' or format('%.0f', math.ceil(ttl / 1000) + 86400000)
  end
  local ending, last = 'n', ''
  if s then ending = 'r' end
  if s and TELL then last = sub(s, 20, 35) end
  local r = ask('SET', key, '1H-' .. till .. token .. now .. mine .. ending .. '\n' .. sub(a, 82) .. '\n\n' .. last .. '\n', 'PX', keep)
  return r.ok and (last == '' and ending or 't' .. last)
end

-- pass makes the first in line whose process is alive the owner, for the claim.
local function pass(key, s)
  while true do
    local e = ask('LPOP', key .. ':q')
    if type(e) ~= 'string' then return nil end
    local process = sub(e, 33, 48)
    if ask('EXISTS', (ALIVE or key .. ':p:') .. process) ~= 0 then
      local token, claim = sub(s, 20, 35), sub(e, 49, 64)
      token = token < now and now or format('%016.0f', token + 1)
      if claim > '0000000003000000' then claim = '0000000003000000' end
      local r = ask('SET', key, '1H+' .. format('%016.0f', time[1] * 1000000 + time[2] + claim) .. token .. now .. sub(e, 1, 32) ..
        'r\n' .. sub(e, 65) .. '\n\n\n', 'PX', format('%.0f', math.ceil(claim / 1000) + 86400000))
      if not r.ok then return nil end
      ask('PUBLISH', CHANNEL .. process, sub(e, 1, 32) .. token .. claim .. 'r')
      return 'K'
    end
  end
end

local function give(key, a)
  local s = ask('GET', key)
  local mine = sub(a, 2, 33)
  if type(s) ~= 'string' or not held(s) or sub(s, -1) ~= '\n' or sub(s, 52, 83) ~= mine then return nil end
  if sub(s, 3, 3) == '+' then return pass(key, s) end
  local new, r = '1R-0000000000000000' .. sub(s, 20, 35) .. sub(a, 34, 49) .. mine .. 'n\n\n\n\n', nil
  if sub(s, 4, 13) - time[1] < 3600 then
    r = ask('SET', key, new, 'KEEPTTL')  -- cheaper, and hardly longer
  else
    r = ask('SET', key, new, 'PX', '86400000')
  end
  return r.ok and 'K'
end

-- refusesAll says whether a server that refuses so takes no write of any call.
local function refusesAll(text)
  for _, sign in ipairs({'READONLY', 'NOREPLICAS', 'MISCONF'}) do
    if string.find(text, sign, 1, true) then return true end
  end
  return false
end

local words, rest = '', nil
for i = 1, #ARGV do
  local a, key = ARGV[i], KEYS[i]
  local what = sub(a, 1, 1)
  local word, answer
  if sane then word, answer = (what == 'R' and give or take)(key, a) end
  if answer then
    word = '?'
    rest = rest or {''}
    rest[#rest + 1] = answer
  elseif not word then
    word = '?'
    local mine, args = sub(a, 2, 33), nil
    if what == 'R' then
      args = {mine, '0', sub(a, 34, 49), '0'}
    else
      args = {mine, sub(a, 34, 49), sub(a, 50, 65), sub(a, 82)}
      if what ~= 'A' then args[5] = mine .. sub(a, 66, 81) .. sub(a, 34, 49) .. sub(a, 82) end
    end
    local done
    done, answer = pcall(general, what, {key, key .. ':q', key .. ':w'}, args)
    if not done and type(answer) ~= 'table' and not string.find(answer, 'user_script', 1, true) then
      answer = {err = answer}  -- what the server has refused
    elseif not done and type(answer) ~= 'table' then
      answer = {err = 'ERR what stands there is damaged, or of another program: look at ' .. key ..
        ', and delete it or use another namespace: ' .. answer}
    end
    if answer.err then
      -- Alone, or where nothing of this call can have been written, it is the answer to all: see apart in common.lua.
      if #ARGV == 1 or refusesAll(answer.err) then return answer end
      answer = {'!', answer.err}
    end
    rest = rest or {''}
    rest[#rest + 1] = answer
  end
  words = words .. word
end
if not rest then return now .. words end
rest[1] = (sane and now or '0000000000000000') .. words  -- all are ? on a clock that is not
return rest
