-- KEYS: as for release.lua, then the record and the record if done. ARGV: as there, then how the run has ended, which is empty for an undo: state,
-- why, whether the result was too large, µs to keep the record or 0, error, result. What release.lua does is in release.
local mine, ended = ARGV[1], ARGV[5]
local r = readJob(KEYS[4], KEYS[5])
if r and r.fail then return r.fail end
local own = r and not r.bad and r.nonce == mine
if ended == '' then
  local answer = release()
  if answer.err or answer[1] == 'V' then return answer end
  if own and r.state == 'R' then withdraw(r) end  -- also if the term has run out
  return answer
end
local s = load(1)
if s and sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
if not (s and holds(s, mine)) then
  if own and r.state == ended then  -- it was sent before
    storeJob(r)  -- once more, for replicas to confirm
    return {'K'}
  end
  return release()
end
if r and r.bad then return {'J', r.bad} end
if not own or r.state ~= 'R' then return {'C'} end
local beside = beside(s)
r.state, r.why, r.noresult, r.expires, r.error, r.result = ended, ARGV[6], ARGV[7], keepJob(ARGV[8]), ARGV[9], ARGV[10]
r.changed = digits(now)
writeJob(r)
local answer = release()
if ended ~= 'O' and beside == '+' then
  for _ = 1, 10000 do  -- all get the same answer, and contend for nothing
    if not wake(KEYS[3]) then break end
  end
end
return answer
