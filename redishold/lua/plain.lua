-- PlainKeys: beside the slot there is the key that other programs lock by SET NX PX and unlock by compare and delete. It
-- decides; the slot only describes. Key 2i-1 is a slot, 2i the plain key of it.
local STRIDE = 2
local COOLING = 'holdlock:cooling'

local function load(i)
  local s = redis.call('GET', KEYS[2 * i - 1])
  if s and sub(s, 1, 1) ~= '1' then return s end
  local p = redis.call('GET', KEYS[2 * i])
  local left = redis.call('PTTL', KEYS[2 * i])  -- in any case, so that a lack of rights shows at the acquire
  if not p then
    if s and free(s) > now then s = sub(s, 1, 3) .. digits(now) .. sub(s, 20) end
    return s
  end
  if left < 0 then left = 31536000000 end  -- somebody forgot to set an expiry: a year
  local ends = digits(now + left * 1000)
  if s and (nonce(s) == p and (state(s) == 'H' or state(s) == 'B') or p == COOLING and state(s) == 'R') then
    return sub(s, 1, 3) .. ends .. sub(s, 20)
  end
  -- A foreign program's, or ours whose slot is lost.
  local mark = 'H'
  if #p ~= 32 or find(p, '[^0-9a-f]') then mark, p = 'F', sub(redis.sha1hex(p), 1, 32) end
  local undone, flag = '', '-'
  local last = digits(0)
  if s then
    last, flag = sub(s, 20, 35), beside(s)
    local _, _, _, u = texts(s)
    undone = u or ''
  end
  return '1' .. mark .. flag .. ends .. last .. digits(0) .. p .. 'n\n\n\n\n' .. undone
end

local function save(i, s, oom)
  local slot, plain = KEYS[2 * i - 1], KEYS[2 * i]
  -- Redis counts from the last whole millisecond, so one more keeps the key from ending early.
  local left = format('%.0f', math.ceil((free(s) - now) / 1000) + 1)
  if free(s) <= now then
    redis.call('PEXPIRE', plain, 0)  -- deletes it
    put(slot, s, oom)
  elseif state(s) == 'R' then
    redis.call('PEXPIRE', plain, left)
    redis.call('SET', plain, COOLING, 'PX', left)
    put(slot, s, oom)
  else
    redis.call('PEXPIRE', plain, left)  -- opens a full server (see put), and needs a right that the release does
    put(slot, s, oom)
    redis.call('SET', plain, nonce(s), 'PX', left)
  end
end

-- freed passes a key on. With plain keys there are watchers only.
local function freed()
  if not wake(KEYS[3]) then redis.call('SETRANGE', KEYS[1], 2, '-') end
end
