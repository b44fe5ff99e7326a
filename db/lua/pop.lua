-- Takes the next messages of one model. A list's right end is its head, and its oldest message.
-- KEYS     the tier lists, level 0 first
-- ARGV     now, policy, threshold_s, boost, seats, blocks, live_workers, pops (made before, for the turns)
-- returns  {depth, level, message, level, message, ...}
local now, policy, threshold, boost = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local seats, blocks, live_workers, pops = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

-- A message that another client sent has no stamp: it goes first, and leaves as soon as nobody can claim its job.
local function read_head(level)
  local raw = redis.call('LINDEX', KEYS[level + 1], -1)
  if not raw then return nil end
  local ready_at, num_blocks = string.match(string.sub(raw, -80), '"ready_at": ([%d.]+), "num_blocks": (%d+)}}$')
  local head = {level = level, raw = raw, ready_at = tonumber(ready_at or 0), num_blocks = tonumber(num_blocks or 0)}
  local wait = math.max(0, now - head.ready_at)
  head.aged = policy == 'fcfs' and 0 or math.max(0, level - boost * math.max(0, wait - threshold))
  return head
end

local function is_before(a, b)
  if a.aged ~= b.aged then return a.aged < b.aged end
  return a.ready_at < b.ready_at
end

-- A winner that only aging lifted above a better tier gets every fourth pop, so that old work cannot shut out new.
local function choose(heads, turn)
  local winner, strict
  for level = 0, #KEYS - 1 do
    local head = heads[level]
    if head then
      strict = strict or head
      if not winner or is_before(head, winner) then winner = head end
    end
  end
  if policy ~= 'fcfs' and winner ~= strict and turn % 4 ~= 3 then return strict end
  return winner
end

local depth, heads = 0, {}
for level = 0, #KEYS - 1 do
  depth = depth + redis.call('LLEN', KEYS[level + 1])
  heads[level] = read_head(level)
end
local wanted = math.min(seats, math.ceil(depth / live_workers))
local reply, taken = {depth}, 0
while taken < wanted do
  local head = choose(heads, pops + taken)
  -- The first is taken although it does not fit: its worker holds it, with space reserved, until it does.
  if not head or (head.num_blocks > blocks and taken > 0) then break end
  redis.call('RPOP', KEYS[head.level + 1])
  reply[#reply + 1], reply[#reply + 2] = head.level, head.raw
  blocks, taken = blocks - head.num_blocks, taken + 1
  if blocks < 0 then break end
  heads[head.level] = read_head(head.level)
end
return reply
