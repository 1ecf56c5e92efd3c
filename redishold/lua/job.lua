-- The record of a job stands beside the slot of its key. See record.go for the layout.
local FOREVER = 315360000000  -- ms, ten years: how long a record lasts from when it was last asked for, if it is to last until settled

local texted = {'input', 'error', 'settled', 'holder'}

-- readAt returns the record that is in a key, or nil if there is none or it has expired.
local function readAt(at, undone, done)
  local raw = redis.pcall('GET', at)
  if not raw then return nil end
  if type(raw) == 'table' then
    if find(raw.err, 'WRONGTYPE', 1, true) then return {bad = 'kind'} end
    return {fail = raw}
  end
  if find(raw, '^[2-9]') then return {bad = 'version'} end
  if #raw < 130 or not find(raw, '^1[ORSD][-len][-h][-ol][-x]') or find(sub(raw, 7, 54), '%D') or
    find(sub(raw, 55, 86), '[^0-9a-f]') or find(sub(raw, 87, 130), '%D') then
    return {bad = 'damaged'}
  end
  local r = {
    at = at, undone = undone, done = done, raw = raw, state = sub(raw, 2, 2), why = sub(raw, 3, 3), hold = sub(raw, 4, 4), before = sub(raw, 5, 5),
    noresult = sub(raw, 6, 6), expires = tonumber(sub(raw, 7, 22)), token = sub(raw, 23, 38), changed = sub(raw, 39, 54),
    nonce = sub(raw, 55, 86), runs = tonumber(sub(raw, 87, 94)), lapses = tonumber(sub(raw, 95, 102)), result = '',
  }
  local at, lens = 131, {sub(raw, 103, 106), sub(raw, 107, 110), sub(raw, 111, 114), sub(raw, 115, 122)}
  for i, name in ipairs(texted) do
    local n = tonumber(lens[i])
    r[name] = sub(raw, at, at + n - 1)
    at = at + n
  end
  if #raw ~= at - 1 + tonumber(sub(raw, 123, 130)) then return {bad = 'damaged'} end
  if r.expires > 0 and r.expires <= now then return nil end
  return r
end

-- readJob returns the record of a job, which is in one of two keys, or nil if there is none any more. One that must not be
-- acted upon has .bad, and the failure of the server is in .fail. A record that has expired is there for a second more, and
-- another may stand in the other key by then.
local function readJob(undone, done)
  return readAt(done, undone, done) or readAt(undone, undone, done)
end

-- standing says whether the term of the last run stands.
local function standing(r, s) return r.state == 'R' and s and holds(s, r.nonce) end

local function lasts(r)
  local ms = FOREVER
  if r.expires > 0 then ms = math.ceil((r.expires - now) / 1000) + 1000 end  -- what is written in it decides
  return format('%.0f', ms)
end

-- storeJob writes a record to the key that its state belongs into, and nowhere else.
local function storeJob(r)
  local key, ms = r.state == 'D' and r.done or r.undone, lasts(r)
  local w = redis.pcall('SET', key, r.raw, 'PX', ms)
  if w.err then  -- see put
    redis.call('PEXPIRE', key, ms)
    redis.call('SET', key, r.raw, 'PX', ms)
  end
  if r.at and r.at ~= key then redis.call('PEXPIRE', r.at, 0) end  -- deletes it
  r.at = key
end

local function writeJob(r)
  r.raw = '1' .. r.state .. r.why .. r.hold .. r.before .. r.noresult .. digits(r.expires) .. r.token .. r.changed .. r.nonce ..
    format('%08d%08d%04d%04d%04d%08d%08d', r.runs, r.lapses, #r.input, #r.error, #r.settled, #r.holder, #r.result) ..
    r.input .. r.error .. r.settled .. r.holder .. r.result
  storeJob(r)
end

-- seen keeps a record that is to last until settled. That it fails is no reason not to answer.
local function seen(r)
  if r.expires == 0 then redis.pcall('PEXPIRE', r.at, lasts(r)) end
end

-- until µs from now, or 0
local function keepJob(us)
  us = tonumber(us)
  return us > 0 and now + us or 0
end

local NOBODY = '00000000000000000000000000000000'

-- withdraw undoes the claim of a term under which nothing was run, and returns the record as it was before.
local function withdraw(r)
  if r.before == '-' then
    redis.call('PEXPIRE', r.at, 0)
    return nil
  end
  r.runs, r.nonce = r.runs - 1, NOBODY
  if r.before == 'o' then
    r.state = 'O'
  else  -- lapsed, still; and only a run that did not hold is followed by another one
    r.lapses, r.hold = r.lapses - 1, '-'
  end
  writeJob(r)
  return r
end
