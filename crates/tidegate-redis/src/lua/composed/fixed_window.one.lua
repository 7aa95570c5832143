local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
local now, keep_ms = unpack_numbers('>I8I8', ARGV[1], 1)
local is_manual_time = now > 0
if not is_manual_time then
local time = call('TIME')
now = time[1] * 1000000 + time[2]
end
local capacity1, period1, opens_with_first_hit1 = unpack_numbers('>I8I8I8', ARGV[1], 17)
local position, amount = 1, 0
local value = pcall_redis('GET', KEYS[1])
local verdict
amount, position = unpack_numbers('>I8', ARGV[2], 5)
local first_key, key = 1, KEYS[1]
local is_readable, is_changed, fresh_at = true, false, 0
if value and value.err then is_readable, value = false, false end
local old_value = value
local text1 = value
local ends1, count1 = 0, 0
if text1 then
if #text1 == 12 then
ends1, count1 = unpack_numbers('>I8I4', text1)
elseif #text1 == 16 then
ends1, count1 = unpack_numbers('>I8I8', text1)
else
is_readable = false
end
if ends1 >= EXACT or count1 >= EXACT then is_readable = false end
end
if not is_readable then
verdict = 'E'
else
local new_end1 = opens_with_first_hit1 == 1 and now + period1 or now - now % period1 + period1
if ends1 > now + period1 then
ends1 = new_end1
is_changed = true
end
if now >= ends1 then ends1, count1 = 0, 0 end
local is_allowed = true
if count1 + amount > capacity1 then is_allowed = false end
verdict = is_allowed and '1' or '0'
if is_allowed and amount > 0 then
count1 = count1 + amount
if ends1 == 0 then ends1 = new_end1 end
is_changed = true
end
if is_changed then
if count1 > 0 and ends1 > fresh_at then fresh_at = ends1 end
text1 = pack_numbers(count1 < 4294967296 and '>I8I4' or '>I8I8', ends1, count1)
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
