-- The slot is all there is of a lock.
local STRIDE = 1

local function load(i) return redis.call('GET', KEYS[i]) end
local function save(i, s, oom) put(KEYS[i], s, oom) end
