local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
local now, keep_ms = unpack_numbers('>I8I8', ARGV[1], 1)
local is_manual_time = now > 0
if not is_manual_time then
local time = call('TIME')
now = time[1] * 1000000 + time[2]
end
local full1, full_part1, denominator1, max_ahead1, max_ahead_part1 = unpack_numbers('>I8I8I8I8I8', ARGV[1], 17)
local cost_us1, cost_part1
local position, amount = 1, 0
local count = #KEYS
local values = call('MGET', unpack(KEYS))
local verdicts = {}
local texts, fresh_ats = {}, {}
local run_end = 0
for check = 1, count do
if check > run_end then
run_end, amount, position = unpack_numbers('>I4I8', ARGV[2], position)
cost_us1, cost_part1, position = unpack_numbers('>I8I8', ARGV[2], position)
end
local first_key = (check - 1) * 1 + 1
local key = KEYS[first_key]
local is_readable, is_changed, fresh_at = true, false, 0
local value = texts[key] or values[check]
local text1 = value
local at1, part1 = 0, 0
if text1 then
local denominator = denominator1
if find(text1, '^%d+$') then
at1 = tonumber(text1)
elseif #text1 == 12 then
at1, part1, denominator = unpack_numbers('>I8I2I2', text1)
elseif #text1 == 24 then
at1, part1, denominator = unpack_numbers('>I8I8I8', text1)
else
is_readable = false
end
if denominator ~= denominator1 then at1, part1 = at1 + 1, 0 end
if at1 >= EXACT then is_readable = false end
end
if not is_readable then
verdicts[check] = 'E'
else
local until_free1, until_free_part1 = 0, 0
if at1 >= now then until_free1, until_free_part1 = at1 - now, part1 end
if until_free1 > max_ahead1 or (until_free1 == max_ahead1 and until_free_part1 > max_ahead_part1) then
until_free1, until_free_part1 = max_ahead1, max_ahead_part1
at1, part1 = now + max_ahead1, max_ahead_part1
is_changed = true
end
local is_allowed = true
local wanted1, wanted_part1 = until_free1 + cost_us1, until_free_part1 + cost_part1
if wanted_part1 >= denominator1 then wanted1, wanted_part1 = wanted1 + 1, wanted_part1 - denominator1 end
if wanted1 > full1 or (wanted1 == full1 and wanted_part1 > full_part1) then is_allowed = false end
verdicts[check] = is_allowed and '1' or '0'
if is_allowed and amount > 0 then
at1, part1 = now + wanted1, wanted_part1
is_changed = true
end
if is_changed then
local free_at1 = part1 > 0 and at1 + 1 or at1
if free_at1 > fresh_at then fresh_at = free_at1 end
if part1 == 0 then
text1 = format('%d', at1)
elseif denominator1 < 65536 then
text1 = pack_numbers('>I8I2I2', at1, part1, denominator1)
else
text1 = pack_numbers('>I8I8I8', at1, part1, denominator1)
end
local text = text1
texts[key], fresh_ats[key] = text, fresh_at
end
end
end
for check = 1, count do
local key = KEYS[(check - 1) * 1 + 1]
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
if KEYS[(other - 1) * 1 + 1] == key then verdicts[other] = 'E' end
end
end
end
end
return { now, table.concat(verdicts), values }
