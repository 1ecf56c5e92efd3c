-- The slot is all there is of a lock. Beside it, and on the same node, there may be its line of waiters, and its watchers.
local STRIDE = 1

local function load(i) return redis.call('GET', KEYS[i]) end
local function save(i, s, oom) put(KEYS[i], s, oom) end

-- freed passes a key on, whose slot s says that it is free or cooling, and that something stands beside it.
local function freed(s)
  local is = free(s) <= now
  if is and promote(KEYS[1], KEYS[2], s) then return end
  if not wake(KEYS[3]) and is and not refused then
    redis.pcall('SETRANGE', KEYS[1], 2, '-')  -- neither line nor watchers; should it fail, the next release looks once more
  end
end
