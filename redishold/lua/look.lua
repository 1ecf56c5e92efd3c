-- Answers the time and the slots of those that are taken, '' for the others. What it cannot read it answers as it is, and what is
-- of another kind as ?.
local out = {digits(now)}
for i = 1, #KEYS / STRIDE do
  local fine, s = pcall(load, i)
  s = fine and (s or '') or '?'
  local ends = sub(s, 1, 1) == '1' and free(s)
  if ends and ends <= now then s = '' end
  out[i + 1] = s
end
return out
