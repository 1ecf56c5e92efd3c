-- KEYS: slot, record, record if done. ARGV: as for acquire.lua, with an empty place, then the fingerprint of the input, whether to hold, how
-- many runs are allowed or 0, µs to keep the record or 0. What acquire.lua does is in acquire. Time stands still, so record
-- and term are judged by one reading of the clock.
local mine, input, hold, maxRuns, keepFor = ARGV[1], ARGV[6], ARGV[7] == '1', tonumber(ARGV[8]), ARGV[9]
local r = readJob(KEYS[2], KEYS[3])
if r and r.fail then return r.fail end
local s = load(1)
if s and sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
if s and beside(s) == '+' and free(s) <= now then s = promote(KEYS[1], KEYS[1] .. ':q', s) or s end
if refused then return refused end
local taken = s and free(s) > now
local again = s and holds(s, mine)

-- judge answers if the record does.
local function judge()
  if input ~= '' and r.input ~= '' and input ~= r.input then return {'I', r.raw, standing(r, s) and '1' or '0'} end
  if r.state == 'D' then
    seen(r)
    return {'D', r.raw}
  end
  if r.state == 'S' then
    seen(r)
    return {'S', r.raw, '0'}
  end
  if taken then return nil end
  local why
  if maxRuns > 0 and r.runs >= maxRuns then why = 'n' end
  if r.state == 'R' and (hold or r.hold == 'h') then why = 'l' end
  if not why then return nil end
  if r.state == 'R' then r.lapses = r.lapses + 1 end
  r.state, r.why, r.changed, r.nonce, r.expires = 'S', why, digits(now), NOBODY, 0
  writeJob(r)
  return {'S', r.raw, '1'}
end

if again then
  if r and (r.bad or r.state ~= 'R' or r.nonce ~= mine) then return {'J', r.bad or 'other'} end
else
  if s and (find(s, mine, 85, true) or nonce(s) == mine and state(s) == 'R') then return {'U'} end
  if r and r.bad then return {'J', r.bad} end
  if r and r.state == 'R' and r.nonce == mine then r = withdraw(r) end  -- its answer was not heard
  local answer = r and judge()
  if answer then return answer end
end
local a = acquire()
if a[1] ~= 'G' then return a end
if not again or not r then
  if not r then
    r = {undone = KEYS[2], done = KEYS[3], before = '-', runs = 0, lapses = 0, input = '', error = '', settled = ''}
  elseif r.state == 'R' then
    r.before, r.lapses = 'l', r.lapses + 1
  else
    r.before = 'o'
  end
  if r.input == '' then r.input = input end
  r.state, r.why, r.hold, r.noresult, r.result = 'R', '-', hold and 'h' or '-', '-', ''
  r.token, r.changed, r.nonce, r.holder, r.runs = a[2], digits(now), mine, ARGV[4], math.min(r.runs + 1, 99999999)
  r.expires = hold and 0 or keepJob(keepFor)
  writeJob(r)
end
a[5] = r.raw
return a
