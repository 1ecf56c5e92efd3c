-- What all scripts begin with. See wire.go for the layout of a slot. Time stands still while a script runs.
local find, sub, match, format = string.find, string.sub, string.match, string.format
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local COUNTER = 86400000  -- ms that the last token of a key outlives its last term
local UNDONE = 300000     -- ms that the nonce of an undone acquire is refused

local function digits(n) return format('%016.0f', n) end
local function state(s) return sub(s, 2, 2) end
local function free(s) return tonumber(sub(s, 3, 18)) end
local function token(s) return tonumber(sub(s, 19, 34)) end
local function nonce(s) return sub(s, 51, 82) end

-- holder, broken, prior, undone
local function texts(s) return match(s, '^\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$', 84) end

-- holds says whether the term n stands now.
local function holds(s, n)
  return nonce(s) == n and free(s) > now and (state(s) == 'H' or state(s) == 'B')
end

-- live returns the nonces that are still to be refused.
local function live(undone)
  local out = ''
  for i = 1, #undone, 48 do
    if tonumber(sub(undone, i + 32, i + 47)) > now then out = out .. sub(undone, i, i + 47) end
  end
  if #out > 3072 then out = sub(out, -3072) end  -- the last 64
  return out
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

-- wake gives a hint to the first watcher in line whose process listens. A cluster counts the listeners of one node only.
local function wake(watchers, channel, cluster)
  for _ = 1, 64 do
    local w = redis.pcall('LPOP', watchers)
    if type(w) ~= 'string' then return end
    local n = redis.pcall('PUBLISH', channel .. sub(w, 1, 16), sub(w, 17))
    if type(n) ~= 'number' or n > 0 or cluster == '1' then return end
  end
end
