-- Several checks in order, at one time; each all or nothing over the limits of the policy. See decide.rs.
--
-- KEYS: for each check the key of its record, where any limit is kept in one, and then one for each log.
-- ARGV: packed numbers: 1 the time (0: the server's own), how long to keep what is written at a given time, in ms, and
--       each limit's; 2 runs of checks of one cost: the last check of the run, the cost, and its time to refill for each
--       bucket.
-- Answers the time, a letter a check (allowed 1, denied 0, unreadable E), the records as they were, and where there are
-- logs what is to be known of them before each check.
--@ include begin
--@ include loop
--@ include open
if not is_readable then
  VERDICT = 'E'
  --@ include no logs
else
  --@ each bring back
  local is_allowed = true
  --@ each fits
  VERDICT = is_allowed and '1' or '0'
  if is_allowed and amount > 0 then
    --@ each take
    is_changed = true
  end
  --@ include close
end
--@ include end loop
--@ include end
