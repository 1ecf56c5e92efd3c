-- KEYS: slot …, watchers. ARGV: nonce, by whom and why, whether at once, channel, cluster
local s = load(1)
if not s then return {'g'} end
if sub(s, 1, 1) ~= '1' then return {'V'} end
local foreign = state(s) == 'F' and nonce(s) == ARGV[1] and free(s) > now
if not foreign and not holds(s, ARGV[1]) then return {'g'} end
if foreign and ARGV[3] ~= '1' then return {'F'} end -- nobody would tell its holder
local holder, _, prior, undone = texts(s)
local ends = free(s)
if ARGV[3] == '1' then ends = 0 end -- since ever, whatever the clock does
save(1, '1B' .. digits(ends) .. sub(s, 19, 83) .. '\n' .. holder .. '\n' .. ARGV[2] .. '\n' .. prior .. '\n' .. undone, true)
if ARGV[3] == '1' then wake(KEYS[#KEYS], ARGV[4], ARGV[5]) end
return {'K'}
