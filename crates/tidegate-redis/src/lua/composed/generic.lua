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
local now, keep_ms, task, count, number_at = unpack_numbers('>I8I8I1I2', ARGV[1])
local is_manual_time = now > 0
if not is_manual_time then
local time = call('TIME')
now = time[1] * 1000000 + time[2]
end
local verdicts, values, logs, checks = {}, {}, {}, {}
local position, next_key, is_all_allowed = 1, 1, true
local function write(check)
local limits, key, first_key, old_value, amount = check.limits, check.key, check.first_key, check.value, check.amount
local fresh_at = 0
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
elseif l.kind == 2 then
elseif l.kind == 3 then
elseif l.kind == 4 then
if l.live == 0 then
if #l.head > 0 then call('DEL', l.log) end
else
if #l.head == 0 then
call('RPUSH', l.log, 0, format('%d', now), format('%d', l.total))
else
if l.expired > 0 or l.kept then call('LTRIM', l.log, 2 * l.expired, l.kept and 2 * l.kept or -1) end
if l.is_new then
call('RPUSH', l.log, format('%d', now), format('%d', l.total))
else
call('LSET', l.log, -1, format('%d', l.total))
end
end
if is_manual_time then
call('PEXPIRE', l.log, keep_ms)
else
call('PEXPIREAT', l.log, format('%d', ceil((l.newest + l.period) / 1000)))
end
end
end
end
if check.has_record then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.is_alone then
l.free_at = l.part > 0 and l.at + 1 or l.at
if l.free_at > fresh_at then fresh_at = l.free_at end
else
l.free_at = l.part > 0 and l.at + 1 or l.at
if l.free_at > fresh_at then fresh_at = l.free_at end
if l.others_at > fresh_at then fresh_at = l.others_at end
end
elseif l.kind == 2 then
if l.count > 0 and l.ends > fresh_at then fresh_at = l.ends end
elseif l.kind == 3 then
l.free_at = l.current > 0 and (l.number + 1) * l.period or l.previous > 0 and l.number * l.period or 0
if l.free_at > fresh_at then fresh_at = l.free_at end
elseif l.kind == 4 then
end
end
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.is_alone then
if l.part == 0 then
l.text = format('%d', l.at)
elseif l.denominator < 65536 then
l.text = pack_numbers('>I8I2I2', l.at, l.part, l.denominator)
else
l.text = pack_numbers('>I8I8I8', l.at, l.part, l.denominator)
end
else
l.text = l.identity .. pack_numbers('>I8I8', l.at, l.part) .. l.others
end
elseif l.kind == 2 then
l.text = pack_numbers(l.count < 4294967296 and '>I8I4' or '>I8I8', l.ends, l.count)
elseif l.kind == 3 then
l.is_small = l.number < 4294967296 and l.current < 4294967296 and l.previous < 4294967296
l.text = pack_numbers(l.is_small and '>I4I4I4' or '>I8I8I8', l.number, l.current, l.previous)
elseif l.kind == 4 then
end
end
local text = ''
for number = 1, #limits do
local l = limits[number]
if l.text then text = check.record_count == 1 and l.text or text .. string.char(#l.text) .. l.text end
end
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
if not is_written then verdicts[check.number] = 'E' end
end
end
for number = 1, count do
local limit_count, has_record
limit_count, has_record, number_at = unpack_numbers('>I1I1', ARGV[1], number_at)
local limits, record_count, log_at = {}, 0, has_record
for limit = 1, limit_count do
local l = { is_alone = limit_count == 1 }
limits[limit] = l
l.kind, number_at = unpack_numbers('>I1', ARGV[1], number_at)
if l.kind == 4 then
l.log_at = log_at
log_at = log_at + 1
else
record_count = record_count + 1
end
end
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.is_alone then
l.full, l.full_part, l.denominator, l.max_ahead, l.max_ahead_part, number_at = unpack_numbers('>I8I8I8I8I8', ARGV[1], number_at)
else
l.full, l.full_part, l.denominator, l.max_ahead, l.max_ahead_part, number_at = unpack_numbers('>I8I8I8I8I8', ARGV[1], number_at)
l.identity = string.sub(ARGV[1], number_at, number_at + 15)
number_at = number_at + 16
end
elseif l.kind == 2 then
l.capacity, l.period, l.opens_with_first_hit, number_at = unpack_numbers('>I8I8I8', ARGV[1], number_at)
elseif l.kind == 3 then
l.capacity, l.period, number_at = unpack_numbers('>I8I8', ARGV[1], number_at)
elseif l.kind == 4 then
l.capacity, l.period, number_at = unpack_numbers('>I8I8', ARGV[1], number_at)
end
end
local amount
amount, position = unpack_numbers('>I8', ARGV[2], position)
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.cost_us, l.cost_part, position = unpack_numbers('>I8I8', ARGV[2], position)
elseif l.kind == 2 then
elseif l.kind == 3 then
elseif l.kind == 4 then
end
end
if task == 4 then
for limit = 1, limit_count do
local l = limits[limit]
l.claim_us, l.claim_part, position = unpack_numbers('>I8I8', ARGV[2], position)
end
elseif task == 5 then
for limit = 1, limit_count do
local l = limits[limit]
l.most, position = unpack_numbers('>I8', ARGV[2], position)
end
end
local first_key, key = next_key, KEYS[next_key]
next_key = next_key + log_at
local is_readable, is_changed, is_allowed = true, false, true
local value = false
if has_record == 1 then
value = pcall_redis('GET', key)
if value and value.err then is_readable, value = false, false end
end
values[number] = value
local next_text = 1
for limit = 1, limit_count do
local l = limits[limit]
l.text = false
if value and l.kind ~= 4 then
if record_count == 1 then
l.text = value
else
local length = string.byte(value, next_text) or 0
l.text = string.sub(value, next_text + 1, next_text + length)
if #l.text < length or length == 0 then is_readable, l.text = false, false end
next_text = next_text + length + 1
end
end
end
if value and record_count > 1 and next_text ~= #value + 1 then is_readable = false end
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.is_alone then
l.at, l.part = 0, 0
if l.text then
local denominator = l.denominator
if find(l.text, '^%d+$') then
l.at = tonumber(l.text)
elseif #l.text == 12 then
l.at, l.part, denominator = unpack_numbers('>I8I2I2', l.text)
elseif #l.text == 24 then
l.at, l.part, denominator = unpack_numbers('>I8I8I8', l.text)
else
is_readable = false
end
if denominator ~= l.denominator then l.at, l.part = l.at + 1, 0 end
if l.at >= EXACT then is_readable = false end
end
else
l.at, l.part, l.others, l.others_at = 0, 0, '', 0
if l.text then
if #l.text % 32 ~= 0 then is_readable = false end
for from = 1, #l.text - 31, 32 do
local at, part = unpack_numbers('>I8I8', l.text, from + 16)
if string.sub(l.text, from, from + 15) == l.identity then
l.at, l.part = at, part
elseif at >= now and #l.others < 192 then
l.others = l.others .. string.sub(l.text, from, from + 31)
if at >= l.others_at then l.others_at = at + 1 end
end
if at >= EXACT or part >= EXACT then is_readable = false end
end
end
end
elseif l.kind == 2 then
l.ends, l.count = 0, 0
if l.text then
if #l.text == 12 then
l.ends, l.count = unpack_numbers('>I8I4', l.text)
elseif #l.text == 16 then
l.ends, l.count = unpack_numbers('>I8I8', l.text)
else
is_readable = false
end
if l.ends >= EXACT or l.count >= EXACT then is_readable = false end
end
elseif l.kind == 3 then
l.number, l.current, l.previous = 0, 0, 0
if l.text then
if #l.text == 12 then
l.number, l.current, l.previous = unpack_numbers('>I4I4I4', l.text)
elseif #l.text == 24 then
l.number, l.current, l.previous = unpack_numbers('>I8I8I8', l.text)
else
is_readable = false
end
if l.number * l.period >= EXACT or l.current >= EXACT or l.previous >= EXACT then is_readable = false end
end
elseif l.kind == 4 then
l.log = KEYS[first_key + l.log_at]
l.head = pcall_redis('LRANGE', l.log, 0, 2)
l.base, l.total, l.newest, l.expired, l.kept, l.is_new, l.head_total = 0, 0, 0, 0, nil, false, nil
if l.head.err then
is_readable = false
elseif #l.head > 0 then
local tail = call('LRANGE', l.log, -2, -1)
local oldest = tonumber(l.head[2])
l.base, l.head_total, l.newest, l.total = tonumber(l.head[1]), tonumber(l.head[3]), tonumber(tail[1]), tonumber(tail[2])
if not (l.base and l.head_total and oldest and l.newest and l.total) then
is_readable = false
elseif now - oldest >= l.period then
local count = (call('LLEN', l.log) - 1) / 2
l.expired, l.head_total = count, nil
if now - l.newest < l.period then
l.expired = count_before(l.log, 1, count, false, now - l.period, 0)
end
l.base = tonumber(call('LINDEX', l.log, 2 * l.expired))
end
end
end
end
local check = { number = number, limits = limits, key = key, first_key = first_key, value = value, amount = amount }
check.has_record, check.record_count = has_record == 1, record_count
checks[number] = check
if not is_readable then
verdicts[number], is_allowed = 'E', false
for log = 1, limit_count - record_count do logs[#logs + 1] = '' end
else
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.until_free, l.until_free_part = 0, 0
if l.at >= now then l.until_free, l.until_free_part = l.at - now, l.part end
if l.until_free > l.max_ahead or (l.until_free == l.max_ahead and l.until_free_part > l.max_ahead_part) then
l.until_free, l.until_free_part = l.max_ahead, l.max_ahead_part
l.at, l.part = now + l.max_ahead, l.max_ahead_part
is_changed = true
end
elseif l.kind == 2 then
l.new_end = l.opens_with_first_hit == 1 and now + l.period or now - now % l.period + l.period
if l.ends > now + l.period then
l.ends = l.new_end
is_changed = true
end
if now >= l.ends then l.ends, l.count = 0, 0 end
elseif l.kind == 3 then
l.number_now = (now - now % l.period) / l.period + 1
if l.number > l.number_now then
l.number = l.number_now
is_changed = true
end
if l.number < l.number_now then
l.previous = l.number == l.number_now - 1 and l.current or 0
l.current, l.number = 0, l.number_now
end
elseif l.kind == 4 then
if l.newest > now then
l.kept = count_before(l.log, l.expired, (call('LLEN', l.log) - 1) / 2, false, now - 1, 0)
l.newest, l.is_new, l.head_total = now, true, nil
is_changed = true
end
l.live = (l.total - l.base) % 4398046511104
end
end
if task <= 2 then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.wanted, l.wanted_part = l.until_free + l.cost_us, l.until_free_part + l.cost_part
if l.wanted_part >= l.denominator then l.wanted, l.wanted_part = l.wanted + 1, l.wanted_part - l.denominator end
if l.wanted > l.full or (l.wanted == l.full and l.wanted_part > l.full_part) then is_allowed = false end
elseif l.kind == 2 then
if l.count + amount > l.capacity then is_allowed = false end
elseif l.kind == 3 then
l.room = l.capacity - l.current - amount
l.left = l.number * l.period - now
if l.room < 0 then
is_allowed = false
elseif l.previous * l.left < EXACT and l.room * l.period < EXACT then
if l.previous * l.left > l.room * l.period then is_allowed = false end
else
local faded_high, faded_low = product(l.previous, l.left)
local room_high, room_low = product(l.room, l.period)
if faded_high > room_high or (faded_high == room_high and faded_low > room_low) then is_allowed = false end
end
elseif l.kind == 4 then
l.missing = l.live + amount - l.capacity
if l.missing <= 0 or l.live == 0 then
logs[#logs + 1] = format('%d %d', l.live, l.newest)
elseif l.head_total and (l.head_total - l.base) % 4398046511104 >= l.missing then
logs[#logs + 1] = format('%d %d %s %d', l.live, l.newest, l.head[2], (l.head_total - l.base) % 4398046511104)
else
local entry_count = l.kept or (call('LLEN', l.log) - 1) / 2
local before = count_before(l.log, l.expired, entry_count, true, l.missing - 1, l.base)
local at, up_to = l.newest, l.live
if before < entry_count then
at = call('LINDEX', l.log, 2 * before + 1)
up_to = (call('LINDEX', l.log, 2 * before + 2) - l.base) % 4398046511104
end
logs[#logs + 1] = format('%d %d %d %d', l.live, l.newest, at, up_to)
end
if l.missing > 0 then is_allowed = false end
end
end
if task == 0 and is_allowed and amount > 0 then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.at, l.part = now + l.wanted, l.wanted_part
elseif l.kind == 2 then
l.count = l.count + amount
if l.ends == 0 then l.ends = l.new_end end
elseif l.kind == 3 then
l.current = l.current + amount
elseif l.kind == 4 then
if not l.is_new and l.live > 0 and (l.newest == now or l.live >= 1000000) then
local entries = (call('LLEN', l.log) - 1) / 2
if l.newest == now or entries - l.expired >= 1000000 then l.kept = entries - 1 end
end
l.total, l.newest, l.is_new = (l.total + amount) % 4398046511104, now, true
l.live = l.live + amount
end
end
is_changed = true
end
verdicts[number] = is_allowed and '1' or '0'
else
verdicts[number] = '1'
if amount > 0 then
is_changed = true
if task == 3 then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.until_free > 0 or l.until_free_part > 0 then
if l.until_free < l.cost_us or (l.until_free == l.cost_us and l.until_free_part <= l.cost_part) then
l.at, l.part = now, 0
elseif l.until_free_part >= l.cost_part then
l.at, l.part = now + l.until_free - l.cost_us, l.until_free_part - l.cost_part
else
l.at, l.part = now + l.until_free - l.cost_us - 1, l.until_free_part + l.denominator - l.cost_part
end
end
elseif l.kind == 2 then
l.count = l.count > amount and l.count - amount or 0
if l.count == 0 then l.ends = 0 end
elseif l.kind == 3 then
l.from_current = l.current < amount and l.current or amount
l.from_previous = amount - l.from_current
l.current = l.current - l.from_current
l.previous = l.previous > l.from_previous and l.previous - l.from_previous or 0
elseif l.kind == 4 then
l.live = l.live > amount and l.live - amount or 0
l.total = (l.base + l.live) % 4398046511104
if l.live > 0 then
local entry_count = l.kept or (call('LLEN', l.log) - 1) / 2
local whole_entries = count_before(l.log, l.expired, entry_count, true, l.live - 1, l.base)
if whole_entries < entry_count then
l.kept, l.is_new, l.newest = whole_entries + 1, false, tonumber(call('LINDEX', l.log, 2 * whole_entries + 1))
end
end
end
end
elseif task == 4 then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.claimed, l.claimed_part = 0, 0
if l.claim_us >= now then l.claimed, l.claimed_part = l.claim_us - now, l.claim_part end
if l.claimed < l.cost_us or (l.claimed == l.cost_us and l.claimed_part < l.cost_part) then
l.cost_us, l.cost_part = l.claimed, l.claimed_part
end
if l.until_free > 0 or l.until_free_part > 0 then
if l.until_free < l.cost_us or (l.until_free == l.cost_us and l.until_free_part <= l.cost_part) then
l.at, l.part = now, 0
elseif l.until_free_part >= l.cost_part then
l.at, l.part = now + l.until_free - l.cost_us, l.until_free_part - l.cost_part
else
l.at, l.part = now + l.until_free - l.cost_us - 1, l.until_free_part + l.denominator - l.cost_part
end
end
elseif l.kind == 2 then
if l.ends == l.claim_us then
l.count = l.count > amount and l.count - amount or 0
if l.count == 0 then l.ends = 0 end
end
elseif l.kind == 3 then
if l.claim_us == l.number * l.period then
l.current = l.current > amount and l.current - amount or 0
elseif l.claim_us == (l.number - 1) * l.period then
l.previous = l.previous > amount and l.previous - amount or 0
end
elseif l.kind == 4 then
if l.live > 0 and l.newest >= l.claim_us then
local entry_count = l.kept or (call('LLEN', l.log) - 1) / 2
local before = count_before(l.log, l.expired, entry_count, false, l.claim_us - 1, 0)
local given, is_whole = 0, false
if before < entry_count and tonumber(call('LINDEX', l.log, 2 * before + 1)) == l.claim_us then
local total_before = before > l.expired and tonumber(call('LINDEX', l.log, 2 * before)) or l.base
local own = (tonumber(call('LINDEX', l.log, 2 * before + 2)) - total_before) % 4398046511104
if l.claim_part == 0 then
given = own < amount and own or amount
is_whole = given == own
elseif own >= l.claim_part then
given = l.claim_part
end
end
if given > 0 and entry_count - before > 1000 then
local later = call('LRANGE', l.log, 2 * before + 1, 2 * before + 2001)
for at = 2, 2000, 2 do
call('LSET', l.log, 2 * before + at, format('%d', (later[at] - given) % 4398046511104))
end
l.unsettled_from, l.unsettled = tonumber(later[2001]), given
if is_whole then
call('LSET', l.log, 2 * before + 1, '-')
call('LSET', l.log, 2 * before + 2, '-')
call('LREM', l.log, before < entry_count / 2 and 2 or -2, '-')
if l.kept then l.kept = l.kept - 1 end
end
elseif given > 0 and before < entry_count then
local later = call('LRANGE', l.log, 2 * before + 1, 2 * entry_count)
call('LTRIM', l.log, 0, 2 * before)
local first = is_whole and 3 or 1
if is_whole and l.kept then l.kept = l.kept - 1 end
if #later >= first then
local rewritten = {}
for at = first, #later, 2 do
rewritten[#rewritten + 1] = later[at]
rewritten[#rewritten + 1] = format('%d', (later[at + 1] - given) % 4398046511104)
end
call('RPUSH', l.log, unpack(rewritten))
end
l.live = l.live - given
l.total = (l.total - given) % 4398046511104
if first > #later and l.live > 0 and not l.is_new then l.newest = tonumber(call('LINDEX', l.log, 2 * before - 1)) end
end
end
end
end
else
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
if l.until_free < l.max_ahead or (l.until_free == l.max_ahead and l.until_free_part < l.max_ahead_part) then
local wanted, wanted_part = l.until_free + l.cost_us, l.until_free_part + l.cost_part
if wanted_part >= l.denominator then wanted, wanted_part = wanted + 1, wanted_part - l.denominator end
if wanted > l.max_ahead or (wanted == l.max_ahead and wanted_part > l.max_ahead_part) then
wanted, wanted_part = l.max_ahead, l.max_ahead_part
end
l.at, l.part = now + wanted, wanted_part
end
elseif l.kind == 2 then
if amount > 0 and l.count < l.most then
l.count = l.count + amount < l.most and l.count + amount or l.most
if l.ends == 0 then l.ends = l.new_end end
end
elseif l.kind == 3 then
l.low, l.high = 0, amount
l.left = l.number * l.period - now
while l.low < l.high do
local middle = ceil((l.low + l.high) / 2)
local room = l.most - l.current - middle
local fits = room >= 0
if fits then
local faded_high, faded_low = product(l.previous, l.left)
local room_high, room_low = product(room, l.period)
fits = not (faded_high > room_high or (faded_high == room_high and faded_low > room_low))
end
if fits then l.low = middle else l.high = middle - 1 end
end
l.current = l.current + l.low
elseif l.kind == 4 then
l.room = l.most - l.live
l.dropped = l.room > 0 and (amount > l.room and amount - l.room or 0) or amount
if l.room > 0 and amount > 0 then
local amount = amount < l.room and amount or l.room
if not l.is_new and l.live > 0 and (l.newest == now or l.live >= 1000000) then
local entries = (call('LLEN', l.log) - 1) / 2
if l.newest == now or entries - l.expired >= 1000000 then l.kept = entries - 1 end
end
l.total, l.newest, l.is_new = (l.total + amount) % 4398046511104, now, true
l.live = l.live + amount
end
end
end
end
end
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
elseif l.kind == 2 then
elseif l.kind == 3 then
elseif l.kind == 4 then
l.missing = l.live - l.capacity
l.wait_at, l.wait_up_to = 0, 0
if l.missing > 0 then
local entry_count = l.kept or #l.head > 0 and (call('LLEN', l.log) - 1) / 2 or 0
local before = #l.head > 0 and count_before(l.log, l.expired, entry_count, true, l.missing - 1, l.base) or 0
l.wait_at, l.wait_up_to = l.newest, l.live
if before < entry_count then
l.wait_at = call('LINDEX', l.log, 2 * before + 1)
l.wait_up_to = (call('LINDEX', l.log, 2 * before + 2) - l.base) % 4398046511104
end
end
logs[#logs + 1] = format('%d %d %d %d %d %d', l.live, l.newest, l.wait_at, l.wait_up_to, l.unsettled_from or 0, l.unsettled or l.dropped or 0)
end
end
end
check.is_changed = is_changed
if is_changed and task ~= 1 then write(check) end
end
if not is_allowed then is_all_allowed = false end
end
if task == 1 then
for number = 1, count do
local check = checks[number]
local limits, amount = check.limits, check.amount
if is_all_allowed and amount > 0 then
for limit = 1, #limits do
local l = limits[limit]
if l.kind == 1 then
l.at, l.part = now + l.wanted, l.wanted_part
elseif l.kind == 2 then
l.count = l.count + amount
if l.ends == 0 then l.ends = l.new_end end
elseif l.kind == 3 then
l.current = l.current + amount
elseif l.kind == 4 then
if not l.is_new and l.live > 0 and (l.newest == now or l.live >= 1000000) then
local entries = (call('LLEN', l.log) - 1) / 2
if l.newest == now or entries - l.expired >= 1000000 then l.kept = entries - 1 end
end
l.total, l.newest, l.is_new = (l.total + amount) % 4398046511104, now, true
l.live = l.live + amount
end
end
check.is_changed = true
end
if check.is_changed then write(check) end
end
end
return { now, table.concat(verdicts), values, logs }
