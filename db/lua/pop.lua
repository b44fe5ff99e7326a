-- Takes the next messages of one model. A list's right end is its head, and its oldest message.
-- KEYS     the tier lists, level 0 first
-- ARGV     now, policy, threshold_s, boost, seats, blocks, live_workers, pops (made before, for the turns),
--          a 1 for each level to look at and a 0 for the others, then level, ready_at, blocks of each waiter
-- returns  {depth, level, message, level, message, ...}
local now, policy, threshold, boost = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local seats, blocks, live_workers, pops = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local levels = ARGV[9]

local function with_age(job)
  local wait = math.max(0, now - job.ready_at)
  job.aged = policy == 'fcfs' and 0 or math.max(0, job.level - boost * math.max(0, wait - threshold))
  return job
end

-- A message that another client sent has no stamp: it goes first, and leaves as soon as nobody can claim its job.
local function read_head(level)
  local raw = redis.call('LINDEX', KEYS[level + 1], -1)
  if not raw then return nil end
  local ready_at, num_blocks = string.match(string.sub(raw, -80), '"ready_at": ([%d.]+), "num_blocks": (%d+)}}$')
  local head = {level = level, raw = raw, ready_at = tonumber(ready_at or 0), num_blocks = tonumber(num_blocks or 0)}
  return with_age(head)
end

local function is_before(a, b)
  if a.aged ~= b.aged then return a.aged < b.aged end
  return a.ready_at < b.ready_at
end

local depth, heads, waiters = 0, {}, {}
for level = 0, #KEYS - 1 do
  if string.sub(levels, level + 1, level + 1) == '1' then
    depth = depth + redis.call('LLEN', KEYS[level + 1])
    heads[level] = read_head(level)
  end
end
for at = 10, #ARGV, 3 do
  local level, ready_at, num_blocks = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  waiters[#waiters + 1] = with_age({level = level, ready_at = ready_at, num_blocks = num_blocks})
end

-- The blocks that a waiter waits for are only there for who goes before it.
local function fits(head)
  local space = blocks
  for _, waiter in ipairs(waiters) do
    if not is_before(head, waiter) then space = space - waiter.num_blocks end
  end
  return head.num_blocks <= space
end

-- A winner that only aging lifted above a better tier gets every fourth pop, so that old work cannot shut out new; nor
-- can it while it does not fit.
local function choose(turn)
  local winner, strict
  for level = 0, #KEYS - 1 do
    local head = heads[level]
    if head then
      strict = strict or head
      if not winner or is_before(head, winner) then winner = head end
    end
  end
  if policy ~= 'fcfs' and winner ~= strict and (turn % 4 ~= 3 or (#waiters > 0 and not fits(winner))) then
    return strict
  end
  return winner
end

local wanted = math.min(seats, math.ceil(depth / live_workers))
local reply, taken = {depth}, 0
while taken < wanted do
  local head = choose(pops + taken)
  -- The first is taken although it does not fit: its worker holds it, with space reserved, until it does. Only one.
  if not head or (not fits(head) and (taken > 0 or #waiters > 0)) then break end
  redis.call('RPOP', KEYS[head.level + 1])
  reply[#reply + 1], reply[#reply + 2] = head.level, head.raw
  blocks, taken = blocks - head.num_blocks, taken + 1
  if blocks < 0 then break end
  heads[head.level] = read_head(head.level)
end
return reply
