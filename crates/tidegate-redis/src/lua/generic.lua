-- The generic script: any task, any keys, any limits. It serves everything that has no script of its own (script.rs). It
-- loops over limits, and keeps in tables what other scripts keep in local variables.
--
-- KEYS: for each check the key of its record, if a limit is stored in one, and then one for each log.
-- ARGV: packed numbers.
--   1: the manual time (0: the server's own), the time to keep records in ms, the task (0 check, 1 check all or nothing,
--      2 peek, 3 refund, 4 settle, 5 charge) and the number of checks; then for each check the number of its limits,
--      whether one is stored in a record, and the kinds and numbers of its limits.
--   2: for each check its cost, and for each bucket the refill time. For a settlement also where each limit counted the
--      request, for a charge the most that each limit can count.
-- Returns the same as check.lua. For a refund, a settlement or a charge, the logs are those after it.
local call, pcall_redis, find, format, ceil = redis.call, redis.pcall, string.find, string.format, math.ceil
local pack_numbers, unpack_numbers = struct.pack, struct.unpack
local EXACT = 9007199254740992
--@ all functions
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
  --@ each write
  if check.has_record then
    --@ each fresh at
    --@ each text
    local text = ''
    for number = 1, #limits do
      local l = limits[number]
      if l.text then text = check.record_count == 1 and l.text or text .. string.char(#l.text) .. l.text end
    end
    local exists, is_written = old_value, true
    --@ include write value
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
    if l.kind == LOG_KIND then
      l.log_at = log_at
      log_at = log_at + 1
    else
      record_count = record_count + 1
    end
  end
  --@ each numbers
  local amount
  amount, position = unpack_numbers('>I8', ARGV[2], position)
  --@ each cost
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
    if value and l.kind ~= LOG_KIND then
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
  --@ each read
  local check = { number = number, limits = limits, key = key, first_key = first_key, value = value, amount = amount }
  check.has_record, check.record_count = has_record == 1, record_count
  checks[number] = check
  if not is_readable then
    verdicts[number], is_allowed = 'E', false
    for log = 1, limit_count - record_count do logs[#logs + 1] = '' end
  else
    --@ each clamp
    if task <= 2 then
      --@ each fits
      if task == 0 and is_allowed and amount > 0 then
        --@ each take
        is_changed = true
      end
      verdicts[number] = is_allowed and '1' or '0'
    else
      verdicts[number] = '1'
      if amount > 0 then
        is_changed = true
        if task == 3 then
          --@ each refund
        elseif task == 4 then
          --@ each refund claimed
        else
          --@ each charge
        end
      end
      --@ each log summary
    end
    check.is_changed = is_changed
    if is_changed and task ~= 1 then write(check) end
  end
  if not is_allowed then is_all_allowed = false end
end

-- All or nothing: all checks are decided, and no other command runs in between.
if task == 1 then
  for number = 1, count do
    local check = checks[number]
    local limits, amount = check.limits, check.amount
    if is_all_allowed and amount > 0 then
      --@ each take
      check.is_changed = true
    end
    if check.is_changed then write(check) end
  end
end
return { now, table.concat(verdicts), values, logs }
