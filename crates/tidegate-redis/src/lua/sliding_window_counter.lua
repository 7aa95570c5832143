-- sliding_window_counter: the count of the current window, plus the count of the previous window
-- weighted by its overlap with the last period. Stored packed, with the number of the window. See
-- sliding_window_counter.rs.

--@ numbers
local capacity$, period$ = NUMBERS

--@ read
local number$, current$, previous$ = 0, 0, 0
if text$ then
  if #text$ == 12 then
    number$, current$, previous$ = unpack_numbers('>I4I4I4', text$)
  elseif #text$ == 24 then
    number$, current$, previous$ = unpack_numbers('>I8I8I8', text$)
  else
    is_readable = false
  end
  if number$ * period$ >= EXACT or current$ >= EXACT or previous$ >= EXACT then is_readable = false end
end

--@ clamp
-- The number of a window is that of the window that starts when it ends.
local number_now$ = (now - now % period$) / period$ + 1
if number$ > number_now$ then
  number$ = number_now$
  is_changed = true
end
-- After a window has passed, its count becomes the previous one; after two, both are 0.
if number$ < number_now$ then
  previous$ = number$ == number_now$ - 1 and current$ or 0
  current$, number$ = 0, number_now$
end

--@ fits
-- previous × rest of this window ≤ room × period, compared exactly: in two limbs if a product exceeds 2^53.
local room$ = capacity$ - current$ - amount
local left$ = number$ * period$ - now
if room$ < 0 then
  is_allowed = false
elseif previous$ * left$ < EXACT and room$ * period$ < EXACT then
  if previous$ * left$ > room$ * period$ then is_allowed = false end
else
  local faded_high, faded_low = product(previous$, left$)
  local room_high, room_low = product(room$, period$)
  if faded_high > room_high or (faded_high == room_high and faded_low > room_low) then is_allowed = false end
end

--@ take
current$ = current$ + amount

--@ refund
local from_current$ = current$ < amount and current$ or amount
local from_previous$ = amount - from_current$
current$ = current$ - from_current$
previous$ = previous$ > from_previous$ and previous$ - from_previous$ or 0

--@ refund claimed
-- From the window in which the request was counted, while that is the current or the previous one.
if claim_us$ == number$ * period$ then
  current$ = current$ > amount and current$ - amount or 0
elseif claim_us$ == (number$ - 1) * period$ then
  previous$ = previous$ > amount and previous$ - amount or 0
end

--@ charge
-- The largest amount that fits, by binary search.
local low$, high$ = 0, amount
local left$ = number$ * period$ - now
while low$ < high$ do
  local middle = ceil((low$ + high$) / 2)
  local room = most$ - current$ - middle
  local fits = room >= 0
  if fits then
    local faded_high, faded_low = product(previous$, left$)
    local room_high, room_low = product(room, period$)
    fits = not (faded_high > room_high or (faded_high == room_high and faded_low > room_low))
  end
  if fits then low$ = middle else high$ = middle - 1 end
end
current$ = current$ + low$

--@ fresh at
local free_at$ = current$ > 0 and (number$ + 1) * period$ or previous$ > 0 and number$ * period$ or 0
if free_at$ > fresh_at then fresh_at = free_at$ end

--@ text
local is_small$ = number$ < 4294967296 and current$ < 4294967296 and previous$ < 4294967296
text$ = pack_numbers(is_small$ and '>I4I4I4' or '>I8I8I8', number$, current$, previous$)

--@ functions
-- Returns a × b as two numbers, the second below 2^50. Both factors are below 2^50, so all intermediate values are below 2^53.
local function product(a, b)
  local a_low, b_low = a % 33554432, b % 33554432
  local a_high, b_high = (a - a_low) / 33554432, (b - b_low) / 33554432
  local middle = a_high * b_low + a_low * b_high
  local middle_low = middle % 33554432
  local low = a_low * b_low + middle_low * 33554432
  local rest = low % 1125899906842624
  return a_high * b_high + (middle - middle_low) / 33554432 + (low - rest) / 1125899906842624, rest
end
