-- Gives back, for several keys in order, at one time; to every limit of the policy. See decide.rs.
--
-- KEYS, ARGV and the answer are as of check.lua; of the logs it tells what is to be known after it.
--@ include begin
--@ include loop
--@ include open
if not is_readable then
  VERDICT = 'E'
  --@ include no logs
else
  --@ each bring back
  VERDICT = '1'
  if amount > 0 then
    --@ each give back
    is_changed = true
  end
  --@ each given back
  --@ include close
end
--@ include end loop
--@ include end
