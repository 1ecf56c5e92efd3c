-- KEYS: slot, record, record if done. ARGV: token, whether it is done, result, by whom and why, µs to keep the record or 0,
-- when it was changed as it was seen, 16 digits, or empty
local r = readJob(KEYS[2], KEYS[3])
if not r then return {'N'} end
if r.fail then return r.fail end
if r.bad then return {'J', r.bad} end
if tonumber(r.token) ~= tonumber(ARGV[1]) then return {'T', r.token} end
local s = load(1)
if s and sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
if ARGV[6] ~= '' and r.changed ~= ARGV[6] then return {'S'} end
if standing(r, s) then return {'H', digits(now), s} end
r.state, r.why, r.nonce, r.noresult, r.changed = 'O', '-', NOBODY, '-', digits(now)
r.settled, r.expires = ARGV[4], keepJob(ARGV[5])
if ARGV[2] == '1' then
  r.state, r.result = 'D', ARGV[3]
else
  r.runs, r.lapses = 0, 0
end
writeJob(r)
return {'K'}
