-- sliding_window_log: remembers every admitted request for one period, in a list of its own:
--
--   base, at, total, at, total, ...     oldest first
--
-- Totals run, so that what is live and what a wait frees are found by halving; `base` is the total before the first
-- entry. To drop the oldest entries is to cut the list before one of its totals, which is the new base. Totals wrap at
-- 2^31, twice the most that can be live: only differences mean anything. See sliding_window_log.rs.
local sliding_window_log = { has_key = true }
algorithms[4] = sliding_window_log

local WRAP = 2147483648

function sliding_window_log.limit()
  return { most = argument(), period = argument() }
end

-- The entry at an index from 1 on: when it was made, and the total with it.
local function entry_at(state, index)
  return tonumber(call('LINDEX', state.key, 2 * index - 1))
end

local function entry_total(state, index)
  return tonumber(call('LINDEX', state.key, 2 * index))
end

local function length(state)
  state.count = state.count or (call('LLEN', state.key) - 1) / 2
  return state.count
end

-- How many entries, of those after `from`, up to `to`, come before the first of which `is_past` no longer holds. It is
-- asked of ever wider steps first: what is looked for is most often near the start.
local function count_while(from, to, is_past)
  local low, high, step = from, from + 1, 1
  while high <= to and is_past(high) do
    low, step = high, step * 2
    high = low + step
  end
  high = math.min(high, to + 1)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if is_past(middle) then low = middle else high = middle end
  end
  return low
end

-- `kept` entries of the list stand (all, if it is nil), of which the first `expired` are dead; after them comes one of
-- this call's own, made now, if `is_new`. `total` is that of the last entry, `base` that of the last dead one.
function sliding_window_log.open(key, limit, now)
  local first = redis.pcall('LRANGE', key, 0, 2)
  if first.err then return nil end
  local state = { key = key, base = 0, total = 0, newest = 0, expired = 0, is_new = false, is_there = false }
  if #first == 0 then
    state.count, state.kept = 0, 0
    return state
  end
  local last = call('LRANGE', key, -2, -1)
  local oldest = whole(first[2])
  state.base, state.newest, state.total = whole(first[1]), whole(last[1]), whole(last[2])
  if not (state.base and oldest and whole(first[3]) and state.newest and state.total) then return nil end
  state.is_there, state.oldest_total = true, tonumber(first[3])
  sliding_window_log.expire(state, limit, now, oldest)
  return state
end

function sliding_window_log.expire(state, limit, now, oldest)
  if now - oldest < limit.period then return end
  if now - state.newest >= limit.period then
    state.expired, state.base = length(state), state.total
    return
  end
  state.expired = count_while(1, length(state), function(index)
    return now - entry_at(state, index) >= limit.period
  end)
  state.base, state.oldest_total = entry_total(state, state.expired), nil
end

function sliding_window_log.bring_back(state, _, now)
  if state.newest <= now then return false end
  -- All that is from the future happened now: one entry with the total of the last.
  state.kept = count_while(state.expired, length(state), function(index) return entry_at(state, index) < now end)
  state.newest, state.is_new, state.oldest_total = now, true, nil
  return true
end

local function live(state)
  return (state.total - state.base) % WRAP
end

function sliding_window_log.fits(state, limit, _, cost)
  return live(state) + cost <= limit.most
end

-- How much is live up to and with an entry of the list.
local function live_up_to(state, index)
  if index == state.expired + 1 and state.oldest_total then return (state.oldest_total - state.base) % WRAP end
  return (entry_total(state, index) - state.base) % WRAP
end

-- What a decision needs of the log: all that is live, the newest entry, and of what is denied the oldest entries that
-- together free what it lacks: the last of them, and all that is live up to it.
function sliding_window_log.summary(state, limit, cost)
  local amount = live(state)
  local lacks = amount + cost - limit.most
  if lacks <= 0 or amount == 0 then return format('%.0f %.0f', amount, state.newest) end
  local kept = state.kept or length(state)
  local before = count_while(state.expired, kept, function(index) return live_up_to(state, index) < lacks end)
  local at, total = state.newest, amount
  if before < kept then at, total = entry_at(state, before + 1), live_up_to(state, before + 1) end
  return format('%.0f %.0f %.0f %.0f', amount, state.newest, at, total)
end

function sliding_window_log.take(state, _, now, cost)
  -- Requests of one instant are one entry.
  if not state.is_new and state.is_there and state.newest == now then state.kept = length(state) - 1 end
  state.total, state.newest, state.is_new = (state.total + cost) % WRAP, now, true
end

function sliding_window_log.give_back(state, _, _, cost)
  -- From the newest first: the total goes back, and entries that add nothing to it go.
  local amount = live(state)
  local left = amount - math.min(cost, amount)
  local kept = state.kept or length(state)
  state.total = (state.base + left) % WRAP
  if left == 0 then
    state.kept, state.is_new = state.expired, false
    return
  end
  local whole_ones = count_while(state.expired, kept, function(index) return live_up_to(state, index) < left end)
  if whole_ones < kept then
    state.kept, state.is_new, state.newest = whole_ones + 1, false, entry_at(state, whole_ones + 1)
  end
end

-- Writes what has changed, with its expiry.
function sliding_window_log.write(state, limit, now, expire)
  if live(state) == 0 then
    if state.is_there then call('DEL', state.key) end
    return
  end
  if not state.is_there then
    call('RPUSH', state.key, state.base, format('%.0f', now), state.total)
  else
    if state.expired > 0 or state.kept then
      call('LTRIM', state.key, 2 * state.expired, state.kept and 2 * state.kept or -1)
    end
    if state.is_new then
      call('RPUSH', state.key, format('%.0f', now), state.total)
    else
      call('LSET', state.key, -1, state.total)
    end
  end
  expire(state.key, state.newest + limit.period)
end
