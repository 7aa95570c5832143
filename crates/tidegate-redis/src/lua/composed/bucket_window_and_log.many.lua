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
local capacity1, period1, opens_with_first_hit1 = unpack_numbers('>I8I8I8', ARGV[1], 17)
local capacity2, period2 = unpack_numbers('>I8I8', ARGV[1], 41)
local full3, full_part3, denominator3, max_ahead3, max_ahead_part3 = unpack_numbers('>I8I8I8I8I8', ARGV[1], 57)
local identity3 = string.sub(ARGV[1], 97, 112)
local cost_us3, cost_part3
local position, amount = 1, 0
local logs = {}
local count, names = #KEYS / 2, {}
for check = 1, count do names[check] = KEYS[(check - 1) * 2 + 1] end
local values = call('MGET', unpack(names))
local verdicts = {}
local texts, fresh_ats = {}, {}
local run_end = 0
for check = 1, count do
if check > run_end then
run_end, amount, position = unpack_numbers('>I4I8', ARGV[2], position)
cost_us3, cost_part3, position = unpack_numbers('>I8I8', ARGV[2], position)
end
local first_key = (check - 1) * 2 + 1
local key = KEYS[first_key]
local is_readable, is_changed, fresh_at = true, false, 0
local value = texts[key] or values[check]
local next_text = 1
local text1 = false
if value then
local length = string.byte(value, next_text) or 0
text1 = string.sub(value, next_text + 1, next_text + length)
if #text1 < length or length == 0 then is_readable, value = false, false end
next_text = next_text + length + 1
end
local text3 = false
if value then
local length = string.byte(value, next_text) or 0
text3 = string.sub(value, next_text + 1, next_text + length)
if #text3 < length or length == 0 then is_readable, value = false, false end
next_text = next_text + length + 1
end
if value and next_text ~= #value + 1 then is_readable = false end
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
local log2 = KEYS[first_key + 1]
local head2 = pcall_redis('LRANGE', log2, 0, 2)
local base2, total2, newest2, expired2, kept2, is_new2, head_total2 = 0, 0, 0, 0, nil, false, nil
if head2.err then
is_readable = false
elseif #head2 > 0 then
local tail = call('LRANGE', log2, -2, -1)
local oldest = tonumber(head2[2])
base2, head_total2, newest2, total2 = tonumber(head2[1]), tonumber(head2[3]), tonumber(tail[1]), tonumber(tail[2])
if not (base2 and head_total2 and oldest and newest2 and total2) then
is_readable = false
elseif now - oldest >= period2 then
local count = (call('LLEN', log2) - 1) / 2
expired2, head_total2 = count, nil
if now - newest2 < period2 then
expired2 = count_before(log2, 1, count, false, now - period2, 0)
end
base2 = tonumber(call('LINDEX', log2, 2 * expired2))
end
end
local at3, part3, others3, others_at3 = 0, 0, '', 0
if text3 then
if #text3 % 32 ~= 0 then is_readable = false end
for from = 1, #text3 - 31, 32 do
local at, part = unpack_numbers('>I8I8', text3, from + 16)
if string.sub(text3, from, from + 15) == identity3 then
at3, part3 = at, part
elseif at >= now and #others3 < 192 then
others3 = others3 .. string.sub(text3, from, from + 31)
if at >= others_at3 then others_at3 = at + 1 end
end
if at >= EXACT or part >= EXACT then is_readable = false end
end
end
if not is_readable then
verdicts[check] = 'E'
for log = 1, 1 do logs[#logs + 1] = '' end
else
local new_end1 = opens_with_first_hit1 == 1 and now + period1 or now - now % period1 + period1
if ends1 > now + period1 then
ends1 = new_end1
is_changed = true
end
if now >= ends1 then ends1, count1 = 0, 0 end
if newest2 > now then
kept2 = count_before(log2, expired2, (call('LLEN', log2) - 1) / 2, false, now - 1, 0)
newest2, is_new2, head_total2 = now, true, nil
is_changed = true
end
local live2 = (total2 - base2) % 4398046511104
local until_free3, until_free_part3 = 0, 0
if at3 >= now then until_free3, until_free_part3 = at3 - now, part3 end
if until_free3 > max_ahead3 or (until_free3 == max_ahead3 and until_free_part3 > max_ahead_part3) then
until_free3, until_free_part3 = max_ahead3, max_ahead_part3
at3, part3 = now + max_ahead3, max_ahead_part3
is_changed = true
end
local is_allowed = true
if count1 + amount > capacity1 then is_allowed = false end
local missing2 = live2 + amount - capacity2
if missing2 <= 0 or live2 == 0 then
logs[#logs + 1] = format('%d %d', live2, newest2)
elseif head_total2 and (head_total2 - base2) % 4398046511104 >= missing2 then
logs[#logs + 1] = format('%d %d %s %d', live2, newest2, head2[2], (head_total2 - base2) % 4398046511104)
else
local entry_count = kept2 or (call('LLEN', log2) - 1) / 2
local before = count_before(log2, expired2, entry_count, true, missing2 - 1, base2)
local at, up_to = newest2, live2
if before < entry_count then
at = call('LINDEX', log2, 2 * before + 1)
up_to = (call('LINDEX', log2, 2 * before + 2) - base2) % 4398046511104
end
logs[#logs + 1] = format('%d %d %d %d', live2, newest2, at, up_to)
end
if missing2 > 0 then is_allowed = false end
local wanted3, wanted_part3 = until_free3 + cost_us3, until_free_part3 + cost_part3
if wanted_part3 >= denominator3 then wanted3, wanted_part3 = wanted3 + 1, wanted_part3 - denominator3 end
if wanted3 > full3 or (wanted3 == full3 and wanted_part3 > full_part3) then is_allowed = false end
verdicts[check] = is_allowed and '1' or '0'
if is_allowed and amount > 0 then
count1 = count1 + amount
if ends1 == 0 then ends1 = new_end1 end
if not is_new2 and live2 > 0 and (newest2 == now or live2 >= 1000000) then
local entries = (call('LLEN', log2) - 1) / 2
if newest2 == now or entries - expired2 >= 1000000 then kept2 = entries - 1 end
end
total2, newest2, is_new2 = (total2 + amount) % 4398046511104, now, true
live2 = live2 + amount
at3, part3 = now + wanted3, wanted_part3
is_changed = true
end
if is_changed then
if live2 == 0 then
if #head2 > 0 then call('DEL', log2) end
else
if #head2 == 0 then
call('RPUSH', log2, 0, format('%d', now), format('%d', total2))
else
if expired2 > 0 or kept2 then call('LTRIM', log2, 2 * expired2, kept2 and 2 * kept2 or -1) end
if is_new2 then
call('RPUSH', log2, format('%d', now), format('%d', total2))
else
call('LSET', log2, -1, format('%d', total2))
end
end
if is_manual_time then
call('PEXPIRE', log2, keep_ms)
else
call('PEXPIREAT', log2, format('%d', ceil((newest2 + period2) / 1000)))
end
end
if count1 > 0 and ends1 > fresh_at then fresh_at = ends1 end
local free_at3 = part3 > 0 and at3 + 1 or at3
if free_at3 > fresh_at then fresh_at = free_at3 end
if others_at3 > fresh_at then fresh_at = others_at3 end
text1 = pack_numbers(count1 < 4294967296 and '>I8I4' or '>I8I8', ends1, count1)
text3 = identity3 .. pack_numbers('>I8I8', at3, part3) .. others3
local text = ''
text = text .. string.char(#text1) .. text1
text = text .. string.char(#text3) .. text3
texts[key], fresh_ats[key] = text, fresh_at
end
end
end
for check = 1, count do
local key = KEYS[(check - 1) * 2 + 1]
local text, fresh_at = texts[key], fresh_ats[key]
if text then
texts[key] = nil
local exists, is_written = values[check], true
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
if not is_written then
for other = check, count do
if KEYS[(other - 1) * 2 + 1] == key then verdicts[other] = 'E' end
end
end
end
end
return { now, table.concat(verdicts), values, logs }
