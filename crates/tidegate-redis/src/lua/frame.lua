-- The parts that the scripts of all policies share. Numbers are doubles: integers below 2^53 are exact, and none is larger.
--
-- A script is composed of sections, see script.rs for the directives. `$` is the number of the limit. NUMBERS stands for the
-- next numbers of the first argument, as many as there are names on the left.

--@ begin
local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
--@ all functions
local now, keep_ms = NUMBERS
local is_manual_time = now > 0
if not is_manual_time then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
--@ each numbers
--@ each cost names
local position, amount = 1, 0
--@ include logs
--@ include values

--@ logs
local logs = {}

--@ loop
local verdicts = {}
-- The changes of this call: the text of a record, and the time at which it equals a fresh one.
local texts, fresh_ats = {}, {}
local run_end = 0
for check = 1, count do

--@ loop, alone
local verdict

--@ end loop
end

--@ end loop, alone

--@ values of one
local count = #KEYS
local values = call('MGET', unpack(KEYS))

--@ values of several
local count, names = #KEYS / KEYS_PER_CHECK, {}
for check = 1, count do names[check] = KEYS[(check - 1) * KEYS_PER_CHECK + 1] end
local values = call('MGET', unpack(names))

--@ values, alone
local value = pcall_redis('GET', KEYS[1])

--@ no values
local count, values = #KEYS / KEYS_PER_CHECK, {}

--@ no values, alone
local value

--@ open
if check > run_end then
  run_end, amount, position = unpack_numbers('>I4I8', ARGV[2], position)
  --@ each cost
end
local first_key = (check - 1) * KEYS_PER_CHECK + 1
local key = KEYS[first_key]
local is_readable, is_changed, fresh_at = true, false, 0
local value = texts[key] or values[check]
--@ include texts
--@ each read

--@ open, alone
amount, position = unpack_numbers('>I8', ARGV[2], 5)
--@ each cost
local first_key, key = 1, KEYS[1]
local is_readable, is_changed, fresh_at = true, false, 0
if value and value.err then is_readable, value = false, false end
local old_value = value
--@ include texts
--@ each read

--@ texts of one
--@ record text of one

--@ text of one
local text$ = value

--@ texts of several
local next_text = 1
--@ record text of several
if value and next_text ~= #value + 1 then is_readable = false end

--@ text of several
local text$ = false
if value then
  local length = string.byte(value, next_text) or 0
  text$ = string.sub(value, next_text + 1, next_text + length)
  if #text$ < length or length == 0 then is_readable, value = false, false end
  next_text = next_text + length + 1
end

--@ no logs
for log = 1, LOG_COUNT do logs[#logs + 1] = '' end

--@ close
if is_changed then
  --@ each write
  --@ include keep
end

--@ keep
--@ each fresh at
--@ each text
--@ include joined
texts[key], fresh_ats[key] = text, fresh_at

--@ keep, alone
--@ each fresh at
--@ each text
--@ include joined
local exists, is_written = old_value, true
--@ include write value
if not is_written then verdict = 'E' end

--@ joined of one
--@ record one alone

--@ one alone
local text = text$

--@ joined of several
local text = ''
--@ record one of several

--@ one of several
text = text .. string.char(#text$) .. text$

--@ write value
if fresh_at <= now and not (is_manual_time and exists) then
  -- The state equals a fresh one. (A manual time may step back to before that.)
  if exists then call('DEL', key) end
else
  -- The value and its expiry in one command. A value that Tidegate did not write is never replaced.
  local unit, time = 'PXAT', format('%d', ceil(fresh_at / 1000))
  if is_manual_time then unit, time = 'PX', keep_ms end
  if exists then
    call('SET', key, text, unit, time)
  else
    is_written = call('SET', key, text, unit, time, 'NX')
  end
end

--@ end
--@ include write values
--@ include answer

--@ write values
for check = 1, count do
  local key = KEYS[(check - 1) * KEYS_PER_CHECK + 1]
  local text, fresh_at = texts[key], fresh_ats[key]
  if text then
    -- Once per key.
    texts[key] = nil
    local exists, is_written = values[check], true
    --@ include write value
    if not is_written then
      for other = check, count do
        if KEYS[(other - 1) * KEYS_PER_CHECK + 1] == key then verdicts[other] = 'E' end
      end
    end
  end
end

--@ write values, alone

--@ answer with logs
return { now, table.concat(verdicts), values, logs }

--@ answer without logs
return { now, table.concat(verdicts), values }

--@ answer with logs, alone
return { now, verdict, { old_value }, logs }

--@ answer without logs, alone
return { now, verdict, { old_value } }
