-- KEYS: slot …, line, watchers. ARGV: nonce, µs to keep the key, id of this call, whether to undo: 0, 1, or 2 if the nonce
-- cannot arrive any more
local mine, cool, call, undo = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] ~= '0'
local tomb = ARGV[4] == '1' and mine .. digits(now + UNDONE * 1000) or ''
local s = load(1)

-- leave takes who gives up waiting out of the line, also where there is no slot. It says whether he stood there, or what the server has refused.
local function leave()
  if STRIDE ~= 1 then return false end
  local places = redis.pcall('LRANGE', KEYS[2], 0, -1)
  if places.err and not find(places.err, 'WRONGTYPE', 1, true) then return false, places end
  for _, e in ipairs(places) do
    if type(e) == 'string' and sub(e, 1, 32) == mine then
      redis.call('LREM', KEYS[2], 1, e)
      return true
    end
  end
  return false
end

if not s then
  if tomb ~= '' then put(KEYS[1], none(tomb)) end
  local stood, failed = leave()
  if failed then return failed end
  if STRIDE == 1 then promote(KEYS[1], KEYS[2], load(1)) end
  return {stood and 'K' or 'g'}
end
if sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
if holds(s, mine) then
  local undone, ending, prior = '', 'n', ''
  if undo or sub(s, -1) ~= '\n' then
    local _, _, before, more = texts(s)
    undone = more
    -- Nothing was done under a term that is undone, so the next one is told how the one before ended.
    if undo then ending, prior = sub(s, 84, 84), before end
    if undo and ending == 'n' then ending = 'u' end
  end
  local flag = beside(s)
  -- Without cooling it is free since ever: a clock that steps back must not close it again.
  local new = '1R' .. flag .. digits(cool > 0 and now + cool or 0) .. sub(s, 20, 35) .. call .. mine .. ending .. '\n\n\n' .. prior .. '\n' ..
    live(undone) .. tomb
  save(1, new, true)
  if flag == '+' then freed(new) end
  return {'K', refused and refused.err}
end
local holder, broken, prior, undone = texts(s)
local answer = {'g'}
if nonce(s) == mine then
  if state(s) == 'B' then answer = {'b', broken} end
  -- This very call has succeeded, its reply was lost, and the client library has sent it again.
  if state(s) == 'R' and sub(s, 36, 51) == call then answer = {'K'} end
else
  local by = broke(KEYS[1], s, mine)
  if by then answer = {'b', by} end
end
if tomb ~= '' and state(s) ~= 'F' and not find(s, mine, 85, true) then
  s = sub(s, 1, 84) .. '\n' .. holder .. '\n' .. broken .. '\n' .. prior .. '\n' .. live(undone) .. tomb
  put(KEYS[1], s, true)
end
local stood, failed = leave()
if failed then return failed end
if stood then answer = {'K'} end
-- If the key is free it passes on.
if STRIDE == 1 and free(s) <= now and beside(s) == '+' then promote(KEYS[1], KEYS[2], s) end
return answer
