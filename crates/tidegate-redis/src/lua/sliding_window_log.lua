-- sliding_window_log: remembers every admitted request for one period, in a list of its own:
--
--   base, at, total, at, total, ...     oldest first
--
-- Totals are running totals, so the live amount and the wait for a request are found by binary search. `base` is the total
-- before the first entry. Dropping the oldest entries means trimming the list before one of its totals, which becomes the
-- new base. Totals wrap at 2^42, twice the largest live amount; only differences are meaningful. See sliding_window_log.rs.
--
-- Variables: the list has `kept` entries, of which the first `expired` have expired. After them comes one entry of this
-- check, at the current time, if `is_new`. `newest` is the time of the last entry and `total` its total; `base` is the
-- total of the last expired one. `kept` is nil if all entries stay and their number is not known yet.

--@ numbers
local capacity$, period$ = NUMBERS

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
    -- The first entry has expired. Either all have, or a binary search finds how many.
    local count = (call('LLEN', log$) - 1) / 2
    expired$, head_total$ = count, nil
    if now - newest$ < period$ then
      expired$ = count_before(log$, 1, count, false, now - period$, 0)
    end
    base$ = tonumber(call('LINDEX', log$, 2 * expired$))
  end
end

--@ clamp
if newest$ > now then
  -- Everything from the future happened now: one entry with the last total.
  kept$ = count_before(log$, expired$, (call('LLEN', log$) - 1) / 2, false, now - 1, 0)
  newest$, is_new$, head_total$ = now, true, nil
  is_changed = true
end
local live$ = (total$ - base$) % 4398046511104

--@ fits
-- The summary that a decision needs: the live amount and the newest entry. For a denial also the last of the oldest
-- entries that together free the missing amount, and the live amount up to it.
local missing$ = live$ + amount - capacity$
if missing$ <= 0 or live$ == 0 then
  logs[#logs + 1] = format('%d %d', live$, newest$)
elseif head_total$ and (head_total$ - base$) % 4398046511104 >= missing$ then
  logs[#logs + 1] = format('%d %d %s %d', live$, newest$, head$[2], (head_total$ - base$) % 4398046511104)
else
  local entry_count = kept$ or (call('LLEN', log$) - 1) / 2
  local before = count_before(log$, expired$, entry_count, true, missing$ - 1, base$)
  local at, up_to = newest$, live$
  if before < entry_count then
    at = call('LINDEX', log$, 2 * before + 1)
    up_to = (call('LINDEX', log$, 2 * before + 2) - base$) % 4398046511104
  end
  logs[#logs + 1] = format('%d %d %d %d', live$, newest$, at, up_to)
end
if missing$ > 0 then is_allowed = false end

--@ take
-- Requests of the same instant are one entry. Beyond a million entries the newest absorbs the new one and takes its time.
-- An entry counts at least a thousandth, so with less than a million thousandths live there are fewer entries.
if not is_new$ and live$ > 0 and (newest$ == now or live$ >= 1000000) then
  local entries = (call('LLEN', log$) - 1) / 2
  if newest$ == now or entries - expired$ >= 1000000 then kept$ = entries - 1 end
end
total$, newest$, is_new$ = (total$ + amount) % 4398046511104, now, true
live$ = live$ + amount

--@ refund
-- Newest first: the total is reduced, and entries that no longer add to it are removed.
live$ = live$ > amount and live$ - amount or 0
total$ = (base$ + live$) % 4398046511104
if live$ > 0 then
  local entry_count = kept$ or (call('LLEN', log$) - 1) / 2
  local whole_entries = count_before(log$, expired$, entry_count, true, live$ - 1, base$)
  if whole_entries < entry_count then
    kept$, is_new$, newest$ = whole_entries + 1, false, tonumber(call('LINDEX', log$, 2 * whole_entries + 1))
  end
end

--@ refund claimed
-- From the entry of the request's time: the totals of it and of all later entries are reduced. One call rewrites at most
-- a thousand. If there are more, the amount counts with the next entry until another call continues there. The reply names
-- that entry; it comes back as the claim, with the amount as its part.
if live$ > 0 and newest$ >= claim_us$ then
  local entry_count = kept$ or (call('LLEN', log$) - 1) / 2
  local before = count_before(log$, expired$, entry_count, false, claim_us$ - 1, 0)
  local given, is_whole = 0, false
  if before < entry_count and tonumber(call('LINDEX', log$, 2 * before + 1)) == claim_us$ then
    local total_before = before > expired$ and tonumber(call('LINDEX', log$, 2 * before)) or base$
    local own = (tonumber(call('LINDEX', log$, 2 * before + 2)) - total_before) % 4398046511104
    if claim_part$ == 0 then
      given = own < amount and own or amount
      is_whole = given == own
    elseif own >= claim_part$ then
      -- Otherwise the log has been replaced, and the cost to give back is gone with it.
      given = claim_part$
    end
  end
  if given > 0 and entry_count - before > 1000 then
    local later = call('LRANGE', log$, 2 * before + 1, 2 * before + 2001)
    for at = 2, 2000, 2 do
      call('LSET', log$, 2 * before + at, format('%d', (later[at] - given) % 4398046511104))
    end
    unsettled_from$, unsettled$ = tonumber(later[2001]), given
    if is_whole then
      -- An entry that counts nothing would stay for a period. It is marked, and deleted from the
      -- nearer end.
      call('LSET', log$, 2 * before + 1, '-')
      call('LSET', log$, 2 * before + 2, '-')
      call('LREM', log$, before < entry_count / 2 and 2 or -2, '-')
      if kept$ then kept$ = kept$ - 1 end
    end
  elseif given > 0 and before < entry_count then
    local later = call('LRANGE', log$, 2 * before + 1, 2 * entry_count)
    call('LTRIM', log$, 0, 2 * before)
    local first = is_whole and 3 or 1
    if is_whole and kept$ then kept$ = kept$ - 1 end
    if #later >= first then
      local rewritten = {}
      for at = first, #later, 2 do
        rewritten[#rewritten + 1] = later[at]
        rewritten[#rewritten + 1] = format('%d', (later[at + 1] - given) % 4398046511104)
      end
      call('RPUSH', log$, unpack(rewritten))
    end
    live$ = live$ - given
    total$ = (total$ - given) % 4398046511104
    if first > #later and live$ > 0 and not is_new$ then newest$ = tonumber(call('LINDEX', log$, 2 * before - 1)) end
  end
end

--@ charge
local room$ = most$ - live$
dropped$ = room$ > 0 and (amount > room$ and amount - room$ or 0) or amount
if room$ > 0 and amount > 0 then
  local amount = amount < room$ and amount or room$
  --@ own take
end

--@ log summary
-- The summary of a request of cost 0 right after: as above, then the entry where the settlement continues and the amount,
-- or 0 and the amount that a charge dropped.
local missing$ = live$ - capacity$
local wait_at$, wait_up_to$ = 0, 0
if missing$ > 0 then
  local entry_count = kept$ or #head$ > 0 and (call('LLEN', log$) - 1) / 2 or 0
  local before = #head$ > 0 and count_before(log$, expired$, entry_count, true, missing$ - 1, base$) or 0
  wait_at$, wait_up_to$ = newest$, live$
  if before < entry_count then
    wait_at$ = call('LINDEX', log$, 2 * before + 1)
    wait_up_to$ = (call('LINDEX', log$, 2 * before + 2) - base$) % 4398046511104
  end
end
logs[#logs + 1] = format('%d %d %d %d %d %d', live$, newest$, wait_at$, wait_up_to$, unsettled_from$ or 0, unsettled$ or dropped$ or 0)

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
  if is_manual_time then
    call('PEXPIRE', log$, keep_ms)
  else
    call('PEXPIREAT', log$, format('%d', ceil((newest$ + period$) / 1000)))
  end
end

--@ functions
-- Returns the number of entries whose time, or whose total counted from `base`, is at most `bound`. The first `from` are
-- known to be. Searches in growing steps first, because the result is usually near the start.
local function count_before(log, from, to, is_total, bound, base)
  local low, high, step = from, from + 1, 1
  while high - low > 1 or step > 0 do
    local middle = step > 0 and high or math.floor((low + high) / 2)
    local is_before = middle <= to
    if is_before and is_total then
      is_before = (redis.call('LINDEX', log, 2 * middle) - base) % 4398046511104 <= bound
    elseif is_before then
      is_before = tonumber(redis.call('LINDEX', log, 2 * middle - 1)) <= bound
    end
    if is_before then low = middle else high, step = middle, 0 end
    if step > 0 then step, high = step * 2, low + step * 2 end
  end
  return low
end
