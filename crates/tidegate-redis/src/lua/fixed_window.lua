-- fixed_window: a count a window; of the clock, stored as `number count`, or from the first admitted request on, stored
-- as `end count`. See fixed_window.rs.
local fixed_window = {}
algorithms[2] = fixed_window

function fixed_window.limit()
  local limit = { most = argument(), period = argument(), opens_with_first_hit = argument() == 1 }
  limit.unit = limit.opens_with_first_hit and 1 or limit.period
  return limit
end

function fixed_window.fresh()
  return { ends = 0, count = 0 }
end

function fixed_window.read(text, limit)
  local ends, count = match(text, '^(%d+) (%d+)$')
  ends, count = whole(ends), whole(count)
  if not (ends and count and ends * limit.unit < EXACT) then return nil end
  return { ends = ends * limit.unit, count = count }
end

function fixed_window.text(state, limit)
  return format('%.0f %.0f', state.ends / limit.unit, state.count)
end

local function new_end(limit, now)
  if limit.opens_with_first_hit then return now + limit.period end
  return now - now % limit.period + limit.period
end

function fixed_window.bring_back(state, limit, now)
  if state.ends <= now + limit.period then return false end
  state.ends = new_end(limit, now)
  return true
end

local function count_at(state, now)
  return now < state.ends and state.count or 0
end

function fixed_window.fits(state, limit, now, cost)
  return count_at(state, now) + cost <= limit.most
end

function fixed_window.take(state, limit, now, cost)
  state.count = count_at(state, now) + cost
  if now >= state.ends then state.ends = new_end(limit, now) end
end

function fixed_window.give_back(state, limit, now, cost)
  state.count = math.max(count_at(state, now) - cost, 0)
  -- A count of 0 closes the window: the state is a fresh one.
  if state.count == 0 then state.ends = 0 end
end

function fixed_window.fresh_at(state)
  return state.count > 0 and state.ends or 0
end
