-- Several checks in order, at one time; each all or nothing over the limits of the policy. See decide.rs.
--
-- KEYS: for each check the key of its record, where any limit is kept in one, and then one for each log.
-- ARGV: the time (0: the server's own) · how long to keep what is written at a given time, in ms · 1 to give back · how
--       many limits, and how many of them logs · each limit's algorithm and numbers · runs of checks of one cost: the last
--       check of the run, the cost, and its time to refill for each bucket.
-- Answers the time, a letter a check (allowed 1, denied 0, unreadable E), the records as they were, and what is to be
-- known of the logs: of each check before it was made, or after what was given back. Nothing is written before all is
-- decided.
local now, hold, is_refund, limit_count, log_count = argument(), argument(), argument() == 1, argument(), argument()
local is_given = now > 0
if not is_given then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local limits = {}
for index = 1, limit_count do
  local algorithm = algorithms[argument()]
  local limit = algorithm.limit()
  limit.algorithm = algorithm
  limits[index] = limit
end

local has_record = log_count < limit_count
local first_log = has_record and 1 or 0
local keys_a_check = first_log + log_count
local check_count = #KEYS / keys_a_check

local function read_records()
  if not has_record then return {} end
  if keys_a_check == 1 then return call('MGET', unpack(KEYS)) end
  local keys = {}
  for check = 1, check_count do keys[check] = KEYS[(check - 1) * keys_a_check + 1] end
  return call('MGET', unpack(keys))
end
local values = read_records()

-- A time in microseconds as one that nothing may expire before, in milliseconds.
local function milliseconds(us)
  return math.ceil(us / 1000)
end

local function expire(key, us)
  if is_given then call('PEXPIRE', key, hold) else call('PEXPIREAT', key, milliseconds(us)) end
end

-- The states of the limits of a key, brought back from the future; nil if something else is stored there.
local function open(at, value)
  local record = { key = KEYS[at], is_there = value, is_changed = false }
  local texts = value and limit_count - log_count > 1 and string.gmatch(value, '[^;]+')
  local log = at + first_log
  for index = 1, limit_count do
    local limit, state = limits[index]
    local algorithm = limit.algorithm
    if algorithm.has_key then
      state = algorithm.open(KEYS[log], limit, now)
      log = log + 1
    elseif value then
      local text = value
      if texts then text = texts() end
      state = text and algorithm.read(text, limit)
    else
      state = algorithm.fresh()
    end
    if not state then return nil end
    if algorithm.bring_back(state, limit, now) then record.is_changed = true end
    record[index] = state
  end
  if texts and texts() then return nil end
  return record
end

local function fits(record, costs)
  for index = 1, limit_count do
    local limit = limits[index]
    if not limit.algorithm.fits(record[index], limit, now, costs[index]) then return false end
  end
  return true
end

local function change(record, costs, how)
  for index = 1, limit_count do
    local limit = limits[index]
    limit.algorithm[how](record[index], limit, now, costs[index])
  end
  record.is_changed = true
end

local logs = {}
local function note_logs(record, cost)
  if log_count == 0 then return end
  for index = 1, limit_count do
    local limit = limits[index]
    if limit.algorithm.has_key then
      logs[#logs + 1] = record and limit.algorithm.summary(record[index], limit, cost) or ''
    end
  end
end

local function decide(record, costs)
  if not record then
    note_logs(nil)
    return 'E'
  end
  if is_refund then
    if costs.amount > 0 then change(record, costs, 'give_back') end
    note_logs(record, 0)
    return '1'
  end
  note_logs(record, costs.amount)
  if not fits(record, costs) then return '0' end
  if costs.amount > 0 then change(record, costs, 'take') end
  return '1'
end

local function read_costs()
  local costs = { amount = argument() }
  for index = 1, limit_count do
    local algorithm = limits[index].algorithm
    costs[index] = algorithm.cost and algorithm.cost() or costs.amount
  end
  return costs
end

-- The record's own value and its expiry in one command. False if the key holds something that is none of ours.
local function write_value(record, text, fresh_at)
  if fresh_at <= now and not (is_given and record.is_there) then
    -- It equals a fresh one. (A given time may step back, to where it did not yet.)
    if record.is_there then call('DEL', record.key) end
    return true
  end
  local unit, time = 'PXAT', milliseconds(fresh_at)
  if is_given then unit, time = 'PX', hold end
  if record.is_there then return call('SET', record.key, text, unit, time) end
  return call('SET', record.key, text, unit, time, 'NX')
end

local function write(record)
  local texts, fresh_at = {}, 0
  for index = 1, limit_count do
    local limit, state = limits[index], record[index]
    local algorithm = limit.algorithm
    if algorithm.has_key then
      algorithm.write(state, limit, now, expire)
    else
      texts[#texts + 1] = algorithm.text(state, limit)
      fresh_at = math.max(fresh_at, algorithm.fresh_at(state, limit))
    end
  end
  return not has_record or write_value(record, #texts == 1 and texts[1] or table.concat(texts, ';'), fresh_at)
end

local records, verdicts, run_end, costs = {}, {}, 0, nil
for check = 1, check_count do
  if check > run_end then run_end, costs = argument(), read_costs() end
  local at = (check - 1) * keys_a_check + 1
  local record = records[KEYS[at]]
  if record == nil then
    record = open(at, values[check]) or false
    records[KEYS[at]] = record
  end
  verdicts[check] = decide(record, costs)
end

for key, record in pairs(records) do
  if record and record.is_changed and not write(record) then
    for check = 1, check_count do
      if KEYS[(check - 1) * keys_a_check + 1] == key then verdicts[check] = 'E' end
    end
  end
end
return { now, table.concat(verdicts), values, logs }
