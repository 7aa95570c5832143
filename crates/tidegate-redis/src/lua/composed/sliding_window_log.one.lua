local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
local function count_before(log, from, to, is_total, bound, base)
local low, high, step = from, from + 1, 1
while high - low > 1 or step > 0 do
local middle = step > 0 and high or math.floor((low + high) / 2)
local is_before = middle <= to
if is_before and is_total then
is_before = (redis.call('LINDEX', log, 2 * middle) - base) % 4398046511104 <= bound
elseif is_before then
is_before = tonumber(redis.call('LINDEX', log, 2 * middle - 1)) <= bound
end
if is_before then low = middle else high, step = middle, 0 end
if step > 0 then step, high = step * 2, low + step * 2 end
end
return low
end
local now, keep_ms = unpack_numbers('>I8I8', ARGV[1], 1)
local is_manual_time = now > 0
if not is_manual_time then
local time = call('TIME')
now = time[1] * 1000000 + time[2]
end
local capacity1, period1 = unpack_numbers('>I8I8', ARGV[1], 17)
local position, amount = 1, 0
local logs = {}
local value
local verdict
amount, position = unpack_numbers('>I8', ARGV[2], 5)
local first_key, key = 1, KEYS[1]
local is_readable, is_changed, fresh_at = true, false, 0
if value and value.err then is_readable, value = false, false end
local old_value = value
local log1 = KEYS[first_key + 0]
local head1 = pcall_redis('LRANGE', log1, 0, 2)
local base1, total1, newest1, expired1, kept1, is_new1, head_total1 = 0, 0, 0, 0, nil, false, nil
if head1.err then
is_readable = false
elseif #head1 > 0 then
local tail = call('LRANGE', log1, -2, -1)
local oldest = tonumber(head1[2])
base1, head_total1, newest1, total1 = tonumber(head1[1]), tonumber(head1[3]), tonumber(tail[1]), tonumber(tail[2])
if not (base1 and head_total1 and oldest and newest1 and total1) then
is_readable = false
elseif now - oldest >= period1 then
local count = (call('LLEN', log1) - 1) / 2
expired1, head_total1 = count, nil
if now - newest1 < period1 then
expired1 = count_before(log1, 1, count, false, now - period1, 0)
end
base1 = tonumber(call('LINDEX', log1, 2 * expired1))
end
end
if not is_readable then
verdict = 'E'
for log = 1, 1 do logs[#logs + 1] = '' end
else
if newest1 > now then
kept1 = count_before(log1, expired1, (call('LLEN', log1) - 1) / 2, false, now - 1, 0)
newest1, is_new1, head_total1 = now, true, nil
is_changed = true
end
local live1 = (total1 - base1) % 4398046511104
local is_allowed = true
local missing1 = live1 + amount - capacity1
if missing1 <= 0 or live1 == 0 then
logs[#logs + 1] = format('%d %d', live1, newest1)
elseif head_total1 and (head_total1 - base1) % 4398046511104 >= missing1 then
logs[#logs + 1] = format('%d %d %s %d', live1, newest1, head1[2], (head_total1 - base1) % 4398046511104)
else
local entry_count = kept1 or (call('LLEN', log1) - 1) / 2
local before = count_before(log1, expired1, entry_count, true, missing1 - 1, base1)
local at, up_to = newest1, live1
if before < entry_count then
at = call('LINDEX', log1, 2 * before + 1)
up_to = (call('LINDEX', log1, 2 * before + 2) - base1) % 4398046511104
end
logs[#logs + 1] = format('%d %d %d %d', live1, newest1, at, up_to)
end
if missing1 > 0 then is_allowed = false end
verdict = is_allowed and '1' or '0'
if is_allowed and amount > 0 then
if not is_new1 and live1 > 0 and (newest1 == now or live1 >= 1000000) then
local entries = (call('LLEN', log1) - 1) / 2
if newest1 == now or entries - expired1 >= 1000000 then kept1 = entries - 1 end
end
total1, newest1, is_new1 = (total1 + amount) % 4398046511104, now, true
live1 = live1 + amount
is_changed = true
end
if is_changed then
if live1 == 0 then
if #head1 > 0 then call('DEL', log1) end
else
if #head1 == 0 then
call('RPUSH', log1, 0, format('%d', now), format('%d', total1))
else
if expired1 > 0 or kept1 then call('LTRIM', log1, 2 * expired1, kept1 and 2 * kept1 or -1) end
if is_new1 then
call('RPUSH', log1, format('%d', now), format('%d', total1))
else
call('LSET', log1, -1, format('%d', total1))
end
end
if is_manual_time then
call('PEXPIRE', log1, keep_ms)
else
call('PEXPIREAT', log1, format('%d', ceil((newest1 + period1) / 1000)))
end
end
end
end
return { now, verdict, { old_value }, logs }
