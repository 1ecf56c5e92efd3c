-- Answers the time and the slots, '' for those that do not exist.
local out = {digits(now)}
for i = 1, #KEYS / STRIDE do out[i + 1] = load(i) or '' end
return out
