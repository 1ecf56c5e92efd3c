-- KEYS: slot …, line, watchers. ARGV: nonce, by whom and why, whether at once
local s = load(1)
if not s then return {'g'} end
if sub(s, 1, 1) ~= '1' then return {'V', sub(s, 1, 20)} end
local foreign = state(s) == 'F' and nonce(s) == ARGV[1] and free(s) > now
if not foreign and not holds(s, ARGV[1]) then return {'g'} end
if foreign and ARGV[3] ~= '1' then return {'F'} end -- nobody would tell its holder
local holder, _, prior, undone = texts(s)
local ends = free(s)
local left = format('%.0f', math.ceil((ends - now) / 1000))
if ARGV[3] == '1' then ends = 0 end -- since ever, whatever the clock does
s = '1B' .. beside(s) .. digits(ends) .. sub(s, 20, 84) .. '\n' .. holder .. '\n' .. ARGV[2] .. '\n' .. prior .. '\n' .. undone
save(1, s, true)
-- Its holder asks while it would have lasted. See broke.
if ARGV[3] == '1' and not foreign then redis.pcall('SET', KEYS[1] .. ':b:' .. ARGV[1], ARGV[2], 'PX', left) end
if ARGV[3] == '1' and beside(s) == '+' then freed(s) end
return {'K', refused and refused.err}
