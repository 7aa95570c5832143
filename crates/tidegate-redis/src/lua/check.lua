-- Several checks in order, at the same time; each all or nothing over the limits of the policy. See decide.rs.
--
-- KEYS: for each check the key of its record, if a limit is stored in one, and then one for each log.
-- ARGV: packed numbers.
--   1: the manual time (0: the server's own), the time to keep records in ms, and the numbers of each limit.
--   2: runs of checks of the same cost: the last check of the run, the cost, and its refill time for each bucket.
-- Returns the time, one letter per check (1 allowed, 0 denied, E unreadable), the records before the call, and the summaries
-- of the logs before each check, if there are any.
--@ include begin
--@ include loop
--@ include open
if not is_readable then
  VERDICT = 'E'
  --@ include no logs
else
  --@ each clamp
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
