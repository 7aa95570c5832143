local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
local function product(a, b)
local a_low, b_low = a % 33554432, b % 33554432
local a_high, b_high = (a - a_low) / 33554432, (b - b_low) / 33554432
local middle = a_high * b_low + a_low * b_high
local middle_low = middle % 33554432
local low = a_low * b_low + middle_low * 33554432
local rest = low % 1125899906842624
return a_high * b_high + (middle - middle_low) / 33554432 + (low - rest) / 1125899906842624, rest
end
local now, keep_ms = unpack_numbers('>I8I8', ARGV[1], 1)
local is_manual_time = now > 0
if not is_manual_time then
local time = call('TIME')
now = time[1] * 1000000 + time[2]
end
local capacity1, period1 = unpack_numbers('>I8I8', ARGV[1], 17)
local position, amount = 1, 0
local value = pcall_redis('GET', KEYS[1])
local verdict
amount, position = unpack_numbers('>I8', ARGV[2], 5)
local first_key, key = 1, KEYS[1]
local is_readable, is_changed, fresh_at = true, false, 0
if value and value.err then is_readable, value = false, false end
local old_value = value
local text1 = value
local number1, current1, previous1 = 0, 0, 0
if text1 then
if #text1 == 12 then
number1, current1, previous1 = unpack_numbers('>I4I4I4', text1)
elseif #text1 == 24 then
number1, current1, previous1 = unpack_numbers('>I8I8I8', text1)
else
is_readable = false
end
if number1 * period1 >= EXACT or current1 >= EXACT or previous1 >= EXACT then is_readable = false end
end
if not is_readable then
verdict = 'E'
else
local number_now1 = (now - now % period1) / period1 + 1
if number1 > number_now1 then
number1 = number_now1
is_changed = true
end
if number1 < number_now1 then
previous1 = number1 == number_now1 - 1 and current1 or 0
current1, number1 = 0, number_now1
end
local is_allowed = true
local room1 = capacity1 - current1 - amount
local left1 = number1 * period1 - now
if room1 < 0 then
is_allowed = false
elseif previous1 * left1 < EXACT and room1 * period1 < EXACT then
if previous1 * left1 > room1 * period1 then is_allowed = false end
else
local faded_high, faded_low = product(previous1, left1)
local room_high, room_low = product(room1, period1)
if faded_high > room_high or (faded_high == room_high and faded_low > room_low) then is_allowed = false end
end
verdict = is_allowed and '1' or '0'
if is_allowed and amount > 0 then
current1 = current1 + amount
is_changed = true
end
if is_changed then
local free_at1 = current1 > 0 and (number1 + 1) * period1 or previous1 > 0 and number1 * period1 or 0
if free_at1 > fresh_at then fresh_at = free_at1 end
local is_small1 = number1 < 4294967296 and current1 < 4294967296 and previous1 < 4294967296
text1 = pack_numbers(is_small1 and '>I4I4I4' or '>I8I8I8', number1, current1, previous1)
local text = text1
local exists, is_written = old_value, true
if fresh_at <= now and not (is_manual_time and exists) then
if exists then call('DEL', key) end
else
local unit, time = 'PXAT', format('%d', ceil(fresh_at / 1000))
if is_manual_time then unit, time = 'PX', keep_ms end
if exists then
call('SET', key, text, unit, time)
else
is_written = call('SET', key, text, unit, time, 'NX')
end
end
if not is_written then verdict = 'E' end
end
end
return { now, verdict, { old_value } }
