-- Takes a request and the tokens of its jobs from a key's rates; of several jobs as many as there is room for.
-- A rate is a bucket that holds what a minute allows and fills evenly. Its key has the time at which it will be full.
-- KEYS     the rate of requests, the rate of tokens
-- ARGV     now (microseconds; empty for the server's clock), requests a minute, tokens a minute (0: any number),
--          requests to take, then the tokens of each job
-- returns  {jobs that are let in, microseconds until the requests are full again, the same of the tokens}
local MINUTE = 60000000
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local limits = {tonumber(ARGV[2]), tonumber(ARGV[3])}

-- At most a minute, also where the clock was set back or the limit was another before.
local function read(rate)
  if limits[rate] == 0 then return 0 end
  local full_at = tonumber(redis.call('GET', KEYS[rate]) or 0)
  return math.min(MINUTE, math.max(0, full_at - now))
end

local function cost(rate, amount)
  if limits[rate] == 0 then return 0 end
  return math.floor(amount * MINUTE / limits[rate])
end

local function write(rate, full_in)
  if full_in == 0 then return end
  redis.call('SET', KEYS[rate], string.format('%.0f', now + full_in), 'PX', math.ceil(full_in / 1000))
end

local requests, tokens, num_jobs = read(1) + cost(1, tonumber(ARGV[4])), read(2), 0
if requests <= MINUTE then
  for at = 5, #ARGV do
    local asked = cost(2, tonumber(ARGV[at]))
    if tokens + asked > MINUTE then break end
    tokens, num_jobs = tokens + asked, num_jobs + 1
  end
end
if num_jobs == 0 then return {0, read(1), tokens} end
write(1, requests)
write(2, tokens)
return {num_jobs, requests, tokens}
