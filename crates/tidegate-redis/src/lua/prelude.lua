-- What every script begins with. Numbers are doubles: whole ones are exact below 2^53, and nothing here goes beyond.
local call, format, match = redis.call, string.format, string.match
local EXACT = 9007199254740992

local position = 0
local function argument()
  position = position + 1
  return tonumber(ARGV[position])
end

-- A number that was stored, or nil if it is none of ours.
local function whole(text)
  local number = text and match(text, '^%d+$') and tonumber(text)
  return number and number < EXACT and number or nil
end

local algorithms = {}
