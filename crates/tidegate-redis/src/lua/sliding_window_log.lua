-- sliding_window_log: remembers every admitted request for one period, in a list of its own:
--
--   base, at, total, at, total, ...     oldest first
--
-- Totals run, so that what is live and what a wait frees are found by halving; `base` is the total before the first
-- entry. To drop the oldest entries is to cut the list before one of its totals, which is the new base. Totals wrap at
-- 2^31, twice the most that can be live: only differences mean anything. See sliding_window_log.rs.
--
-- In what follows `kept` entries of the list stand, of which the first `expired` are dead; after them comes one of this
-- check's own, made now, if `is_new`. `newest` is the time of the last entry and `total` its total; `base` that of the
-- last dead one. `kept` is nil where all stand and their number has not been asked for.

--@ numbers
local most$, period$ = NUMBERS

--@ read
local log$ = KEYS[first_key + LOG]
local head$ = pcall_redis('LRANGE', log$, 0, 2)
local base$, total$, newest$, expired$, kept$, is_new$, head_total$ = 0, 0, 0, 0, nil, false, nil
if head$.err then
  is_readable = false
elseif #head$ > 0 then
  local tail = call('LRANGE', log$, -2, -1)
  local oldest = tonumber(head$[2])
  base$, head_total$, newest$, total$ = tonumber(head$[1]), tonumber(head$[3]), tonumber(tail[1]), tonumber(tail[2])
  if not (base$ and head_total$ and oldest and newest$ and total$) then
    is_readable = false
  elseif now - oldest >= period$ then
    -- The first has expired: how many have? All, or up to where halving finds it.
    local count = (call('LLEN', log$) - 1) / 2
    expired$, head_total$ = count, nil
    if now - newest$ < period$ then
      expired$ = count_before(log$, 1, count, false, now - period$, 0)
    end
    base$ = tonumber(call('LINDEX', log$, 2 * expired$))
  end
end

--@ bring back
if newest$ > now then
  -- All that is from the future happened now: one entry with the total of the last.
  kept$ = count_before(log$, expired$, (call('LLEN', log$) - 1) / 2, false, now - 1, 0)
  newest$, is_new$, head_total$ = now, true, nil
  is_changed = true
end
local live$ = (total$ - base$) % 2147483648

--@ fits
-- What a decision needs of the log: all that is live, the newest entry, and of what is denied the oldest entries that
-- together free what it lacks: the last of them, and all that is live up to it.
local lacks$ = live$ + amount - most$
if lacks$ <= 0 or live$ == 0 then
  logs[#logs + 1] = format('%d %d', live$, newest$)
elseif head_total$ and (head_total$ - base$) % 2147483648 >= lacks$ then
  logs[#logs + 1] = format('%d %d %s %d', live$, newest$, head$[2], (head_total$ - base$) % 2147483648)
else
  local stand = kept$ or (call('LLEN', log$) - 1) / 2
  local before = count_before(log$, expired$, stand, true, lacks$ - 1, base$)
  local at, up_to = newest$, live$
  if before < stand then
    at = call('LINDEX', log$, 2 * before + 1)
    up_to = (call('LINDEX', log$, 2 * before + 2) - base$) % 2147483648
  end
  logs[#logs + 1] = format('%d %d %d %d', live$, newest$, at, up_to)
end
if lacks$ > 0 then is_allowed = false end

--@ take
-- Requests of one instant are one entry. Beyond a million entries the newest absorbs the new one and takes its time.
-- An entry counts at least a thousandth: with less than a million of them live there are fewer entries.
if not is_new$ and live$ > 0 and (newest$ == now or live$ >= 1000000) then
  local entries = (call('LLEN', log$) - 1) / 2
  if newest$ == now or entries - expired$ >= 1000000 then kept$ = entries - 1 end
end
total$, newest$, is_new$ = (total$ + amount) % 2147483648, now, true
live$ = live$ + amount

--@ give back
-- From the newest first: the total goes back, and entries that add nothing to it go.
live$ = live$ > amount and live$ - amount or 0
total$ = (base$ + live$) % 2147483648
if live$ > 0 then
  local stand = kept$ or (call('LLEN', log$) - 1) / 2
  local whole_ones = count_before(log$, expired$, stand, true, live$ - 1, base$)
  if whole_ones < stand then
    kept$, is_new$, newest$ = whole_ones + 1, false, tonumber(call('LINDEX', log$, 2 * whole_ones + 1))
  end
end

--@ give back claimed
-- From the entry of the request's time: it and all later ones have a smaller total from here on. One call rewrites a
-- thousand of them at the most. Where there are more, what is given back counts with the entry after those until the next
-- call goes on from there: it is named in the answer, and comes back as the claim, with the amount as its part.
if live$ > 0 and newest$ >= claim_us$ then
  local stand = kept$ or (call('LLEN', log$) - 1) / 2
  local before = count_before(log$, expired$, stand, false, claim_us$ - 1, 0)
  local given, is_whole = 0, false
  if before < stand and tonumber(call('LINDEX', log$, 2 * before + 1)) == claim_us$ then
    local total_before = before > expired$ and tonumber(call('LINDEX', log$, 2 * before)) or base$
    local own = (tonumber(call('LINDEX', log$, 2 * before + 2)) - total_before) % 2147483648
    if claim_part$ == 0 then
      given = own < amount and own or amount
      is_whole = given == own
    elseif own >= claim_part$ then
      -- Otherwise the log is another one by now, and what was to be given back is gone with it.
      given = claim_part$
    end
  end
  if given > 0 and stand - before > 1000 then
    local later = call('LRANGE', log$, 2 * before + 1, 2 * before + 2001)
    for at = 2, 2000, 2 do
      call('LSET', log$, 2 * before + at, format('%d', (later[at] - given) % 2147483648))
    end
    unsettled_from$, unsettled$ = tonumber(later[2001]), given
    if is_whole then
      -- An entry that counts nothing would stay for a period: it is marked and deleted from the nearer end.
      call('LSET', log$, 2 * before + 1, '-')
      call('LSET', log$, 2 * before + 2, '-')
      call('LREM', log$, before < stand / 2 and 2 or -2, '-')
      if kept$ then kept$ = kept$ - 1 end
    end
  elseif given > 0 and before < stand then
    local later = call('LRANGE', log$, 2 * before + 1, 2 * stand)
    call('LTRIM', log$, 0, 2 * before)
    local first = is_whole and 3 or 1
    if is_whole and kept$ then kept$ = kept$ - 1 end
    if #later >= first then
      local rewritten = {}
      for at = first, #later, 2 do
        rewritten[#rewritten + 1] = later[at]
        rewritten[#rewritten + 1] = format('%d', (later[at + 1] - given) % 2147483648)
      end
      call('RPUSH', log$, unpack(rewritten))
    end
    live$ = live$ - given
    total$ = (total$ - given) % 2147483648
    if first > #later and live$ > 0 and not is_new$ then newest$ = tonumber(call('LINDEX', log$, 2 * before - 1)) end
  end
end

--@ charge
local room$ = most$ - live$
if room$ > 0 and amount > 0 then
  local amount = amount < room$ and amount or room$
  --@ own take
end

--@ given back
if unsettled$ then
  logs[#logs + 1] = format('%d %d %d %d', live$, newest$, unsettled_from$, unsettled$)
else
  logs[#logs + 1] = format('%d %d', live$, newest$)
end

--@ write
if live$ == 0 then
  if #head$ > 0 then call('DEL', log$) end
else
  if #head$ == 0 then
    call('RPUSH', log$, 0, format('%d', now), format('%d', total$))
  else
    if expired$ > 0 or kept$ then call('LTRIM', log$, 2 * expired$, kept$ and 2 * kept$ or -1) end
    if is_new$ then
      call('RPUSH', log$, format('%d', now), format('%d', total$))
    else
      call('LSET', log$, -1, format('%d', total$))
    end
  end
  if is_given then
    call('PEXPIRE', log$, hold)
  else
    call('PEXPIREAT', log$, format('%d', ceil((newest$ + period$) / 1000)))
  end
end

--@ functions
-- How many entries from the first on, of which the first `from` are known to, are at most `bound`: their times, or their
-- totals as counted from `base`. Ever wider steps first: what is looked for is most often near the start.
local function count_before(log, from, to, is_total, bound, base)
  local low, high, step = from, from + 1, 1
  while high - low > 1 or step > 0 do
    local middle = step > 0 and high or math.floor((low + high) / 2)
    local is_before = middle <= to
    if is_before and is_total then
      is_before = (redis.call('LINDEX', log, 2 * middle) - base) % 2147483648 <= bound
    elseif is_before then
      is_before = tonumber(redis.call('LINDEX', log, 2 * middle - 1)) <= bound
    end
    if is_before then low = middle else high, step = middle, 0 end
    if step > 0 then step, high = step * 2, low + step * 2 end
  end
  return low
end
