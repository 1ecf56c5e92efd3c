-- Stands before the scripts of a node of a quorum; see quorum.go for the mark. The lines that are put before this one set
-- time, and MARK, NAME, PRINT, MEMBERS, KEEP (ms), SPAN (µs), DURABLE and STRICT.
do
  local m = redis.pcall('GET', MARK)
  -- Nearly always the mark is as it was left, and long enough ago. This says no more than gate does, and sooner.
  local good = false
  if type(m) == 'string' and string.sub(m, 1, 35) == '1\n' .. PRINT .. '\n' then
    local since, armed, at = string.match(m, '^(%d+)\n(%d+)()\n', 77)
    if at and string.sub(m, at) == '\n' .. NAME .. '\n' .. MEMBERS then
      local now = time[1] * 1000000 + time[2]
      good = not STRICT or now >= since + SPAN and now - armed <= 86400000000 and
        string.find(redis.call('INFO', 'server'), 'run_id:' .. string.sub(m, 36, 75) .. '\r', 1, true)
    end
  end
  if not good then
    local function gate(m)
      local function refuse(code, text) return redis.error_reply(code .. ' ' .. text) end
      local now = time[1] * 1000000 + time[2]
      local run0, since, armed
      if type(m) == 'table' then
        if string.find(m.err, 'WRONGTYPE', 1, true) then return refuse('QUORUMDAMAGED', 'the mark cannot be read') end
        return m
      end
      if m then
        local print, name, members
        print, run0, since, armed, name, members = string.match(m, '^1\n(%x+)\n(%x+)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)$')
        if not print then
          local other = string.match(m, '^(%d+)\n')
          if other and other ~= '1' then return refuse('QUORUMVERSION', 'the mark is of a newer version') end
          return refuse('QUORUMDAMAGED', 'the mark cannot be read')
        end
        if print ~= PRINT then return refuse('QUORUMMEMBERS', members) end
        if name ~= NAME then return refuse('QUORUMTWIN', name) end
        since, armed = tonumber(since), tonumber(armed)
      end
      if not STRICT then return nil end
      local info = redis.call('INFO', 'server')
      local run = string.match(info, 'run_id:(%x+)')
      local write = true
      if not m then
        since = now -- a new node, or one whose data is gone
      elseif run ~= run0 and not DURABLE then
        -- It has restarted, and may have lost its last writes. Its clock shows whole seconds.
        local up = tonumber(string.match(info, 'uptime_in_seconds:(%d+)')) - 1
        since = now - math.max(0, up) * 1000000
      elseif since > now then
        since = now -- its clock was set back
      else
        write = run ~= run0 or now - armed > 86400000000
      end
      if write then
        local r = redis.pcall('SET', MARK, table.concat({'1', PRINT, run, string.format('%.0f', since),
          string.format('%.0f', now), NAME, MEMBERS}, '\n'), 'PX', KEEP)
        if type(r) == 'table' and r.err then return r end
      end
      if now < since + SPAN then return refuse('QUORUMABSTAINS', string.format('%.0f', since + SPAN - now)) end
      return nil
    end
    local refusal = gate(m)
    if refusal then return refusal end
  end
end
