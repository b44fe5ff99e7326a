-- Puts messages back where their age belongs: at the head of a tier list, behind whatever is older.
-- KEYS     the tier list (right end: its head, the oldest), a side list (left end: its newest), a list to set aside
-- ARGV     most heads to look behind
-- returns  how many messages the tier list gained
local list, side, aside = KEYS[1], KEYS[2], KEYS[3]

local function stamp(raw)
  return raw and tonumber(string.match(string.sub(raw, -80), '"ready_at": ([%d.]+), "num_blocks": %d+}}$') or 0)
end

local function job_id(raw)
  return string.match(raw, '"correlation_id": "([^"]+)"')
end

local newest = stamp(redis.call('LINDEX', side, 0))
if not newest then return 0 end
local head, looked = redis.call('LINDEX', list, -1), 0
while head and stamp(head) < newest and looked < tonumber(ARGV[1]) do
  redis.call('LMOVE', list, aside, 'RIGHT', 'RIGHT')
  head, looked = redis.call('LINDEX', list, -1), looked + 1
end

-- A sweep that read the rows just before a submit published may bring a message that is here by now.
local gained = redis.call('LLEN', side)
local first = redis.call('LINDEX', side, 0)
if head and stamp(head) == newest and job_id(head) == job_id(first) then
  redis.call('LPOP', side)
  gained = gained - 1
end

for _ = 1, looked do
  local set_aside = stamp(redis.call('LINDEX', aside, -1))
  local moved = redis.call('LINDEX', side, 0)
  while moved and stamp(moved) >= set_aside do
    redis.call('LMOVE', side, list, 'LEFT', 'RIGHT')
    moved = redis.call('LINDEX', side, 0)
  end
  redis.call('LMOVE', aside, list, 'RIGHT', 'RIGHT')
end
for _ = 1, redis.call('LLEN', side) do
  redis.call('LMOVE', side, list, 'LEFT', 'RIGHT')
end
return gained
