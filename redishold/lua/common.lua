-- What all scripts begin with. See wire.go for the layout of a slot. Time stands still while a script runs.
-- The driver puts CHANNEL, ALIVE and TELL before, the names of what belongs to processes, and time, the answer of TIME; on a Cluster
-- a process is alive for each key, and ALIVE is nil.
local find, sub, match, format = string.find, string.sub, string.match, string.format
local now = time[1] * 1000000 + time[2]

local COUNTER = 86400000  -- ms that the last token of a key outlives its last term
local UNDONE = 300000     -- ms that the nonce of an undone acquire is refused
local CLAIM = 3000000     -- µs that a hand-over lasts until it is confirmed
local LINE = 30000        -- ms that a line lasts without a heartbeat
local SILENT = 3000       -- ms after which a process that sends no heartbeat is skipped

local function digits(n) return format('%016.0f', n) end
local function state(s) return sub(s, 2, 2) end
local function beside(s) return sub(s, 3, 3) end
local function free(s) return tonumber(sub(s, 4, 19)) end
local function token(s) return tonumber(sub(s, 20, 35)) end
local function nonce(s) return sub(s, 52, 83) end

-- holder, broken, prior, undone
local function texts(s) return match(s, '^\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$', 85) end

-- holds says whether the term n stands now.
local function holds(s, n)
  return nonce(s) == n and free(s) > now and (state(s) == 'H' or state(s) == 'B')
end

-- broke says whether the term n was broken and has been followed by others, of which s is the slot of the last, and by whom it was. The
-- first of them has it in its slot. Their terms can be short, so break.lua notes it besides for as long as the term would have lasted.
local function broke(slot, s, n)
  if sub(s, 84, 84) == 'b' then
    local _, _, prior = texts(s)
    local by = sub(prior, 33, 64) == n and match(prior, '\t(.*)$')
    if by then return by end
  end
  local by = redis.pcall('GET', slot .. ':b:' .. n)
  return type(by) == 'string' and by or nil
end

-- live returns the nonces that are still to be refused. The oldest stand first.
local function live(undone)
  local i = 1
  while i < #undone and tonumber(sub(undone, i + 32, i + 47)) <= now do i = i + 48 end
  return sub(undone, math.max(i, #undone - 3071))  -- 64 at most
end

-- none is the slot of a key that has had no term. Something may stand beside it.
local function none(undone)
  return '1N+' .. digits(0) .. digits(0) .. digits(0) .. format('%032d', 0) .. 'n\n\n\n\n' .. undone
end

-- how long the slot is kept, in ms
local function keep(s)
  if state(s) == 'N' then return UNDONE end
  return math.ceil(math.max(0, free(s) - now) / 1000) + COUNTER
end

-- put writes a slot. Under OOM a script may write what takes memory once it has written something else, so a term can be
-- ended and renewed on a full server.
local function put(key, s, oom)
  local ms = format('%.0f', keep(s))
  if not oom then
    redis.call('SET', key, s, 'PX', ms)
    return
  end
  local r = redis.pcall('SET', key, s, 'PX', ms)
  if r.err then
    redis.call('PEXPIRE', key, ms)
    redis.call('SET', key, s, 'PX', ms)
  end
end

-- after returns how the term of a slot that is free has ended, what is told of it, and what is to be refused. Of one that was
-- released its token is told, by a node of a quorum.
local function after(s)
  local st = state(s)
  if st == 'R' and #s == 88 and sub(s, 84, 84) == 'n' then return 'r', TELL and sub(s, 20, 35) or '', '' end
  local holder, broken, _, undone = texts(s)
  undone = live(undone)
  if st == 'R' then
    local e = sub(s, 84, 84)
    if e == 'n' then return 'r', TELL and sub(s, 20, 35) or '', undone end
    return e == 'u' and 'n' or e, (select(3, texts(s))), undone  -- the last one was undone
  end
  if st == 'N' then return 'n', '', undone end
  return st == 'H' and 'l' or 'b', sub(s, 20, 83) .. holder .. '\t' .. broken, undone
end

-- apart is what f answers about one lock of several: what stands there and cannot be worked on must keep no other lock from an
-- answer. It also says whether the server has refused, which is then the answer to all: client libraries look for it. An error among
-- other answers is a text: a client library that makes something of it, as of OOM, may stop there, and read what is left of the list as the
-- answers to the calls that follow.
local function apart(f, i)
  local _, answer = pcall(f, i)
  if type(answer) ~= 'table' then answer = {err = answer} end
  local text = answer.err
  if not text then return answer, false end
  if find(text, 'WRONGTYPE', 1, true) or find(text, 'user_script', 1, true) then return {'!', text}, false end
  return answer, true
end

-- refused is the server's error if it has refused to look for the next in line: that says nothing about whether somebody waits.
local refused

-- promote hands a free key to the first in line whose process is alive, for the claim, and tells it. It returns the new
-- slot, or nil if nobody waits or the server has refused. s is the slot, if there is one.
local function promote(slot, line, s)
  while true do
    local e = redis.pcall('LPOP', line)
    if type(e) == 'table' and not find(e.err, 'WRONGTYPE', 1, true) then
      refused = {err = e.err .. ' (LPOP)'}
      return nil
    end
    if type(e) ~= 'string' then return nil end  -- empty, or not ours: whoever enqueues is told
    local process = sub(e, 33, 48)
    local seen = redis.pcall('EXISTS', (ALIVE or slot .. ':p:') .. process)
    if seen ~= 0 then
      local last, ending, prior, undone = 0, 'n', '', ''
      if s then
        last = token(s)
        ending, prior, undone = after(s)
      end
      local lasts = math.min(tonumber(sub(e, 49, 64)), CLAIM)
      local t = digits(math.max(last + 1, now))
      local new = '1H+' .. digits(now + lasts) .. t .. digits(now) .. sub(e, 1, 32) .. ending ..
        '\n' .. sub(e, 65) .. '\n\n' .. prior .. '\n' .. undone
      put(slot, new, true)
      redis.pcall('PUBLISH', CHANNEL .. process, sub(e, 1, 32) .. t .. digits(lasts) .. ending .. prior)
      return new
    end
  end
end

-- wake gives a hint to the first watcher in line whose process listens, and says whether there was one. A cluster counts
-- the listeners of one node only.
local function wake(watchers)
  for _ = 1, 64 do
    local w = redis.pcall('LPOP', watchers)
    if type(w) ~= 'string' then return false end
    local n = redis.pcall('PUBLISH', CHANNEL .. sub(w, 1, 16), sub(w, 17))
    if type(n) ~= 'number' or n > 0 or not ALIVE then return true end
  end
  return true
end
