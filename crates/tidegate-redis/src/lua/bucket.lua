-- token_bucket, gcra and leaky_bucket: the free-again time of the bucket, exact: whole microseconds
-- `at` and `part` of the rate's denominator. See bucket.rs.
--
-- A bucket that is a policy's only limit is stored as a decimal number if there is no part, and
-- otherwise packed with the denominator: in the namespace of buckets of any rate it may have been
-- written with another one.
--
-- A bucket beside other limits is stored with the numbers that identify it, 16 bytes, then `at` and
-- `part`, 8 bytes each. While two configurations of a named policy are in use, the states of both
-- are stored, one after the other.

--@ numbers
-- The refill time of the whole bucket, and that of the bucket and its debt. A longer time until free is from the future.
local full$, full_part$, denominator$, max_ahead$, max_ahead_part$ = NUMBERS

--@ numbers, several
local full$, full_part$, denominator$, max_ahead$, max_ahead_part$ = NUMBERS
local identity$ = IDENTITY

--@ cost names
local cost_us$, cost_part$

--@ cost
-- The refill time of the cost.
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
  -- A part of another rate's denominator is rounded up to the next microsecond, so no capacity is gained.
  if denominator ~= denominator$ then at$, part$ = at$ + 1, 0 end
  if at$ >= EXACT then is_readable = false end
end

--@ read, several
local at$, part$, others$, others_at$ = 0, 0, '', 0
if text$ then
  if #text$ % 32 ~= 0 then is_readable = false end
  for from = 1, #text$ - 31, 32 do
    local at, part = unpack_numbers('>I8I8', text$, from + 16)
    if string.sub(text$, from, from + 15) == identity$ then
      at$, part$ = at, part
    elseif at >= now and #others$ < 192 then
      others$ = others$ .. string.sub(text$, from, from + 31)
      if at >= others_at$ then others_at$ = at + 1 end
    end
    if at >= EXACT or part >= EXACT then is_readable = false end
  end
end

--@ clamp
-- The time until the bucket is free again.
local until_free$, until_free_part$ = 0, 0
if at$ >= now then until_free$, until_free_part$ = at$ - now, part$ end
if until_free$ > max_ahead$ or (until_free$ == max_ahead$ and until_free_part$ > max_ahead_part$) then
  until_free$, until_free_part$ = max_ahead$, max_ahead_part$
  at$, part$ = now + max_ahead$, max_ahead_part$
  is_changed = true
end

--@ fits
local wanted$, wanted_part$ = until_free$ + cost_us$, until_free_part$ + cost_part$
if wanted_part$ >= denominator$ then wanted$, wanted_part$ = wanted$ + 1, wanted_part$ - denominator$ end
if wanted$ > full$ or (wanted$ == full$ and wanted_part$ > full_part$) then is_allowed = false end

--@ take
at$, part$ = now + wanted$, wanted_part$

--@ refund
-- A bucket that is already free keeps its time. Moved forward to now, it would be from the future after a clock step back.
if until_free$ > 0 or until_free_part$ > 0 then
  if until_free$ < cost_us$ or (until_free$ == cost_us$ and until_free_part$ <= cost_part$) then
    at$, part$ = now, 0
  elseif until_free_part$ >= cost_part$ then
    at$, part$ = now + until_free$ - cost_us$, until_free_part$ - cost_part$
  else
    at$, part$ = now + until_free$ - cost_us$ - 1, until_free_part$ + denominator$ - cost_part$
  end
end

--@ refund claimed
-- At most the time until the free-again time right after the request.
local claimed$, claimed_part$ = 0, 0
if claim_us$ >= now then claimed$, claimed_part$ = claim_us$ - now, claim_part$ end
if claimed$ < cost_us$ or (claimed$ == cost_us$ and claimed_part$ < cost_part$) then
  cost_us$, cost_part$ = claimed$, claimed_part$
end
--@ own refund

--@ charge
-- Up to the whole bucket and its debt.
if until_free$ < max_ahead$ or (until_free$ == max_ahead$ and until_free_part$ < max_ahead_part$) then
  local wanted, wanted_part = until_free$ + cost_us$, until_free_part$ + cost_part$
  if wanted_part >= denominator$ then wanted, wanted_part = wanted + 1, wanted_part - denominator$ end
  if wanted > max_ahead$ or (wanted == max_ahead$ and wanted_part > max_ahead_part$) then
    wanted, wanted_part = max_ahead$, max_ahead_part$
  end
  at$, part$ = now + wanted, wanted_part
end

--@ fresh at
local free_at$ = part$ > 0 and at$ + 1 or at$
if free_at$ > fresh_at then fresh_at = free_at$ end

--@ fresh at, several
local free_at$ = part$ > 0 and at$ + 1 or at$
if free_at$ > fresh_at then fresh_at = free_at$ end
if others_at$ > fresh_at then fresh_at = others_at$ end

--@ text, several
text$ = identity$ .. pack_numbers('>I8I8', at$, part$) .. others$

--@ text
if part$ == 0 then
  text$ = format('%d', at$)
elseif denominator$ < 65536 then
  text$ = pack_numbers('>I8I2I2', at$, part$, denominator$)
else
  text$ = pack_numbers('>I8I8I8', at$, part$, denominator$)
end
