-- token_bucket, gcra and leaky_bucket: the time at which the bucket is free again, exact: whole microseconds and a part
-- of the rate's denominator. Stored as `at`, or as `at part denominator`. See bucket.rs.
local bucket = {}
algorithms[1] = bucket

function bucket.limit()
  return { full = argument(), full_part = argument(), denominator = argument() }
end

-- The time that the cost takes to refill.
function bucket.cost()
  return { us = argument(), part = argument() }
end

function bucket.fresh()
  return { at = 0, part = 0 }
end

function bucket.read(text, limit)
  local at = whole(text)
  if at then return { at = at, part = 0 } end
  local first, second, third = match(text, '^(%d+) (%d+) (%d+)$')
  at = whole(first)
  local part, denominator = whole(second), whole(third)
  if not (at and part and denominator) then return nil end
  -- A part of another rate's denominator says nothing here: up to the next microsecond, which gives nothing away.
  if denominator ~= limit.denominator then return { at = at + 1, part = 0 } end
  return { at = at, part = part }
end

function bucket.text(state, limit)
  if state.part == 0 then return format('%.0f', state.at) end
  return format('%.0f %.0f %.0f', state.at, state.part, limit.denominator)
end

-- The time until it is free again.
local function ahead(state, now)
  if state.at < now then return 0, 0 end
  return state.at - now, state.part
end

local function is_longer(us, part, other_us, other_part)
  return us > other_us or (us == other_us and part > other_part)
end

function bucket.bring_back(state, limit, now)
  local us, part = ahead(state, now)
  if not is_longer(us, part, limit.full, limit.full_part) then return false end
  state.at, state.part = now + limit.full, limit.full_part
  return true
end

local function wanted(state, limit, now, cost)
  local us, part = ahead(state, now)
  us, part = us + cost.us, part + cost.part
  if part >= limit.denominator then return us + 1, part - limit.denominator end
  return us, part
end

function bucket.fits(state, limit, now, cost)
  local us, part = wanted(state, limit, now, cost)
  return not is_longer(us, part, limit.full, limit.full_part)
end

function bucket.take(state, limit, now, cost)
  local us, part = wanted(state, limit, now, cost)
  state.at, state.part = now + us, part
end

function bucket.give_back(state, limit, now, cost)
  local us, part = ahead(state, now)
  -- What is free already stays as it is: moved up to now, it would be from the future if the clock stepped back.
  if us == 0 and part == 0 then return end
  if not is_longer(us, part, cost.us, cost.part) then
    state.at, state.part = now, 0
  elseif part >= cost.part then
    state.at, state.part = now + us - cost.us, part - cost.part
  else
    state.at, state.part = now + us - cost.us - 1, part + limit.denominator - cost.part
  end
end

-- When it equals a fresh one.
function bucket.fresh_at(state)
  return state.part > 0 and state.at + 1 or state.at
end
