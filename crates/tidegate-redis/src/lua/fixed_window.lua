-- fixed_window: one count per window, identified by the window's end; aligned to the clock or to
-- the first admitted request. Stored packed. See fixed_window.rs.

--@ numbers
local capacity$, period$, opens_with_first_hit$ = NUMBERS

--@ read
local ends$, count$ = 0, 0
if text$ then
  if #text$ == 12 then
    ends$, count$ = unpack_numbers('>I8I4', text$)
  elseif #text$ == 16 then
    ends$, count$ = unpack_numbers('>I8I8', text$)
  else
    is_readable = false
  end
  if ends$ >= EXACT or count$ >= EXACT then is_readable = false end
end

--@ clamp
local new_end$ = opens_with_first_hit$ == 1 and now + period$ or now - now % period$ + period$
if ends$ > now + period$ then
  ends$ = new_end$
  is_changed = true
end
if now >= ends$ then ends$, count$ = 0, 0 end

--@ fits
if count$ + amount > capacity$ then is_allowed = false end

--@ take
count$ = count$ + amount
if ends$ == 0 then ends$ = new_end$ end

--@ refund
count$ = count$ > amount and count$ - amount or 0
-- A count of 0 closes the window: the state becomes a fresh one.
if count$ == 0 then ends$ = 0 end

--@ refund claimed
-- Only in the window in which the request was counted.
if ends$ == claim_us$ then
  --@ own refund
end

--@ charge
if amount > 0 and count$ < most$ then
  count$ = count$ + amount < most$ and count$ + amount or most$
  if ends$ == 0 then ends$ = new_end$ end
end

--@ fresh at
if count$ > 0 and ends$ > fresh_at then fresh_at = ends$ end

--@ text
text$ = pack_numbers(count$ < 4294967296 and '>I8I4' or '>I8I8', ends$, count$)
