-- sliding_window_counter: this window's count, and the last one's by the share of it that is still in sight. Stored as
-- `number current previous`. See sliding_window_counter.rs.
local sliding_window_counter = {}
algorithms[3] = sliding_window_counter

function sliding_window_counter.limit()
  return { most = argument(), period = argument() }
end

function sliding_window_counter.fresh()
  return { ends = 0, current = 0, previous = 0 }
end

function sliding_window_counter.read(text, limit)
  local number, current, previous = match(text, '^(%d+) (%d+) (%d+)$')
  number, current, previous = whole(number), whole(current), whole(previous)
  if not (number and current and previous and number * limit.period < EXACT) then return nil end
  return { ends = number * limit.period, current = current, previous = previous }
end

function sliding_window_counter.text(state, limit)
  return format('%.0f %.0f %.0f', state.ends / limit.period, state.current, state.previous)
end

local function end_of_window(limit, now)
  return now - now % limit.period + limit.period
end

function sliding_window_counter.bring_back(state, limit, now)
  if state.ends <= now + limit.period then return false end
  state.ends = end_of_window(limit, now)
  return true
end

-- Where windows have passed, the count has become the previous one, or nothing.
local function roll(state, limit, now)
  if now < state.ends then return end
  state.previous = now - state.ends < limit.period and state.current or 0
  state.current, state.ends = 0, end_of_window(limit, now)
end

-- a × b as two numbers, the second below 2^50. Both are below 2^50, and so is everything in between below 2^53.
local function product(a, b)
  local HALF, WHOLE = 33554432, 1125899906842624
  local a_low, b_low = a % HALF, b % HALF
  local a_high, b_high = (a - a_low) / HALF, (b - b_low) / HALF
  local middle = a_high * b_low + a_low * b_high
  local middle_low = middle % HALF
  local low = a_low * b_low + middle_low * HALF
  local rest = low % WHOLE
  return a_high * b_high + (middle - middle_low) / HALF + (low - rest) / WHOLE, rest
end

local function is_at_most(a, b, c, d)
  local left, right = a * b, c * d
  if left < EXACT and right < EXACT then return left <= right end
  local left_high, left_low = product(a, b)
  local right_high, right_low = product(c, d)
  return left_high < right_high or (left_high == right_high and left_low <= right_low)
end

function sliding_window_counter.fits(state, limit, now, cost)
  roll(state, limit, now)
  local room = limit.most - state.current - cost
  return room >= 0 and is_at_most(state.previous, state.ends - now, room, limit.period)
end

function sliding_window_counter.take(state, limit, now, cost)
  roll(state, limit, now)
  state.current = state.current + cost
end

function sliding_window_counter.give_back(state, limit, now, cost)
  roll(state, limit, now)
  local from_current = math.min(cost, state.current)
  state.current = state.current - from_current
  state.previous = math.max(state.previous - (cost - from_current), 0)
end

function sliding_window_counter.fresh_at(state, limit)
  if state.current > 0 then return state.ends + limit.period end
  return state.previous > 0 and state.ends or 0
end
