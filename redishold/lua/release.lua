-- KEYS: slot …, watchers. ARGV: nonce, µs to keep the key, id of this call, whether to undo, channel, cluster
local mine, cool, call, undo = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local tomb = undo and mine .. digits(now + UNDONE * 1000) or ''
local s = load(1)
if not s then
  if undo then put(KEYS[1], '1N' .. digits(0) .. digits(0) .. digits(0) .. format('%032d', 0) .. 'n\n\n\n\n' .. tomb) end
  return {'g'}
end
if sub(s, 1, 1) ~= '1' then return {'V'} end
local holder, broken, prior, undone = texts(s)
if holds(s, mine) then
  -- Without cooling it is free since ever: a clock that steps back must not close it again.
  save(1, '1R' .. digits(cool > 0 and now + cool or 0) .. sub(s, 19, 34) .. call .. mine .. 'n\n\n\n\n' .. live(undone) .. tomb, true)
  wake(KEYS[#KEYS], ARGV[5], ARGV[6])
  return {'K'}
end
local answer = {'g'}
if nonce(s) == mine then
  if state(s) == 'B' then answer = {'b', broken} end
  -- This very call has succeeded, its reply was lost, and the client library has sent it again.
  if state(s) == 'R' and sub(s, 35, 50) == call then answer = {'K'} end
end
if undo and state(s) ~= 'F' and not find(s, mine, 84, true) then
  put(KEYS[1], sub(s, 1, 83) .. '\n' .. holder .. '\n' .. broken .. '\n' .. prior .. '\n' .. live(undone) .. tomb, true)
end
return answer
