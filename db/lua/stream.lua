-- One job's token stream, written by this script alone. The last entry says who holds the pen and how far it got:
--   a  attempt that wrote it      w  its worker ('' once fenced)      n  tokens delivered so far
--   k  open | tokens | end        p  the entry's tokens, as JSON; 'waits' of an opening that is not computed
--                                    yet; how it succeeded, of an end that tells it
-- An entry's id begins with n, so that a reader asks for what follows any token.
-- KEYS     the stream, which is also the channel of its news
-- ARGV     what, attempt, worker, first, count, tokens, ttl_s
-- returns  {'ok', n, payloads} | {'stale', n} | {'behind', n} | {'missing', 0} | {'ended', n}
local key, what, attempt, worker = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local first, count, tokens, ttl = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]

local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
local a, w, n, k = 0, '', 0, ''
if last then
  local fields = last[2]
  a, w, n, k = tonumber(fields[2]), fields[4], tonumber(fields[6]), fields[8]
end

local function payloads()
  local found = {}
  for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
    if entry[2][8] == 'tokens' then found[#found + 1] = entry[2][10] end
  end
  return found
end

local function write(by_attempt, by_worker, num_tokens, kind, payload)
  -- An end may count fewer tokens than were delivered; ids only grow.
  local id = string.format('%d-*', math.max(n, num_tokens))
  redis.call('XADD', key, id, 'a', by_attempt, 'w', by_worker, 'n', num_tokens, 'k', kind, 'p', payload)
  -- A key that was just made has none yet; a day outlasts any thousand tokens.
  if kind ~= 'tokens' or n == 0 or math.floor(n / 1000) < math.floor(num_tokens / 1000) then
    redis.call('EXPIRE', key, ttl)
  end
  -- Who waits for the end alone can tell, and who has all before these tokens need not ask for them.
  local news = kind == 'tokens' and num_tokens .. ' ' .. payload or num_tokens
  redis.call('PUBLISH', key, kind == 'end' and 'end' or news)
end

if what == 'open' then
  if k == 'end' then return {'ended', n} end
  if a > attempt or (a == attempt and w ~= worker and w ~= '') then return {'stale', n} end
  local found = payloads()
  write(attempt, worker, n, 'open', tokens)
  return {'ok', n, found}
end

if what == 'append' then
  if last and a < attempt then
    -- Our own opening was lost with Redis's data, and an older attempt wrote since: begin again from memory.
    if first > 0 then return {'missing', 0} end
    redis.call('DEL', key)
    last, n = nil, 0
  end
  if not last and first > 0 then return {'missing', 0} end
  if last and (k == 'end' or a > attempt or w ~= worker) then return {'stale', n} end
  if n > first and n >= first + count then return {'ok', n} end -- a repeat, whose first answer was lost
  if n ~= first then return {'behind', n} end
  write(attempt, worker, first + count, 'tokens', tokens)
  return {'ok', first + count}
end

if what == 'fence' then
  if not last then return {'missing', 0, {}} end
  local found = payloads()
  if k ~= 'end' then write(a, '', n, 'open', '') end
  return {'ok', n, found}
end

-- end: a job that delivered nothing has no stream, and gets none; its readers are told to look at the row.
if not last then
  redis.call('PUBLISH', key, 'end')
elseif k ~= 'end' then
  write(a, w, first, 'end', tokens)
end
return {'ok', first}
