-- token_bucket, gcra and leaky_bucket: the time at which the bucket is free again, exact: whole microseconds `at` and
-- `part` of the rate's denominator. Stored as a decimal number where there is no part, else packed with the denominator.
-- See bucket.rs.

--@ numbers
local full$, full_part$, denominator$ = NUMBERS

--@ cost names
local cost_us$, cost_part$

--@ cost
-- The time that the cost takes to refill.
cost_us$, cost_part$, position = unpack_numbers('>I8I8', ARGV[2], position)

--@ read
local at$, part$ = 0, 0
if text$ then
  local denominator = denominator$
  if find(text$, '^%d+$') then
    at$ = tonumber(text$)
  elseif #text$ == 12 then
    at$, part$, denominator = unpack_numbers('>I8I2I2', text$)
  elseif #text$ == 24 then
    at$, part$, denominator = unpack_numbers('>I8I8I8', text$)
  else
    is_readable = false
  end
  -- A part of another rate's denominator says nothing here: up to the next microsecond, which gives nothing away.
  if denominator ~= denominator$ then at$, part$ = at$ + 1, 0 end
  if at$ >= EXACT then is_readable = false end
end

--@ bring back
-- The time until it is free again.
local ahead$, ahead_part$ = 0, 0
if at$ >= now then ahead$, ahead_part$ = at$ - now, part$ end
if ahead$ > full$ or (ahead$ == full$ and ahead_part$ > full_part$) then
  ahead$, ahead_part$ = full$, full_part$
  at$, part$ = now + full$, full_part$
  is_changed = true
end

--@ fits
local wanted$, wanted_part$ = ahead$ + cost_us$, ahead_part$ + cost_part$
if wanted_part$ >= denominator$ then wanted$, wanted_part$ = wanted$ + 1, wanted_part$ - denominator$ end
if wanted$ > full$ or (wanted$ == full$ and wanted_part$ > full_part$) then is_allowed = false end

--@ take
at$, part$ = now + wanted$, wanted_part$

--@ give back
-- What is free already stays as it is: moved up to now, it would be from the future if the clock stepped back.
if ahead$ > 0 or ahead_part$ > 0 then
  if ahead$ < cost_us$ or (ahead$ == cost_us$ and ahead_part$ <= cost_part$) then
    at$, part$ = now, 0
  elseif ahead_part$ >= cost_part$ then
    at$, part$ = now + ahead$ - cost_us$, ahead_part$ - cost_part$
  else
    at$, part$ = now + ahead$ - cost_us$ - 1, ahead_part$ + denominator$ - cost_part$
  end
end

--@ fresh at
local free_at$ = part$ > 0 and at$ + 1 or at$
if free_at$ > fresh_at then fresh_at = free_at$ end

--@ text
if part$ == 0 then
  text$ = format('%d', at$)
elseif denominator$ < 65536 then
  text$ = pack_numbers('>I8I2I2', at$, part$, denominator$)
else
  text$ = pack_numbers('>I8I8I8', at$, part$, denominator$)
end
