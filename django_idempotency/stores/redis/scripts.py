"""
The scripts of the Redis store: one per operation, each one atomic step on one record.

A record is a hash at KEYS[1]. Times, leases and epochs are whole microseconds of the server's
clock. Lua and some servers write such numbers without all of their digits, so commands get them by
``string.format('%.0f')``; in answers they are whole. Redis 6.2 knows all commands here.

A server whose memory is full refuses a script whose first write can take memory, and looks at no
later write. A claim of a new key begins with HSET, so it is refused. A script that changes a record
begins with DEL or HDEL, so it runs: the result of work that was done must be recorded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from django_idempotency.records import KEPT, NAMED

__all__ = [
    "CLAIM",
    "COMPLETE",
    "ERASE",
    "FAIL",
    "LOOK",
    "NOTE",
    "OWNER",
    "RELEASE",
    "RENEW",
    "RESOLVE",
    "Script",
]

# Parts of scripts: all fields of a record, where its result is among them, the last arguments of a
# claim, and their fields.
PARTS = {
    "{FIELDS}": ", ".join(f"'{name}'" for name in KEPT),
    "{RESULT}": str(1 + KEPT.index("result")),
    "{NAMED}": ", ".join(f"'{name}', ARGV[{5 + n}]" for n, name in enumerate(NAMED, 1)),
    "{FINGERPRINTS}": str(6 + len(NAMED)),
}


@dataclass(frozen=True)
class Script:
    """The script of an operation; ``sha`` is its name on the server."""

    name: str
    text: str
    sha: str


def _script(name: str, text: str) -> Script:
    for part, value in PARTS.items():
        text = text.replace(part, value)
    # Redis names scripts by this digest, which protects nothing.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# The marker has one field for each secret. While a new secret is deployed, old and new processes
# each find the field of their own.
OWNER = _script(
    "OWNER",
    """
-- Return 1 if the marker at KEYS[1] is this project's, or is not there; 0 if it is another's.
local note = ARGV[1] == '1'          -- write the digest under SECRET_KEY if the marker lacks it
local newest = ARGV[2]               -- that digest; those under SECRET_KEY_FALLBACKS follow

local known = redis.pcall('HMGET', KEYS[1], unpack(ARGV, 2))
if known.err and string.find(known.err, 'WRONGTYPE', 1, true) then
  return 0                                      -- no hash, so it is not our marker
elseif known.err then
  return known
end
local ours = redis.call('EXISTS', KEYS[1]) == 0
for i = 1, #known do
  ours = ours or known[i]
end
if ours and note and not known[1] then
  redis.call('HSET', KEYS[1], newest, redis.call('TIME')[1])
end
return ours and 1 or 0
""",
)

CLAIM = _script(
    "CLAIM",
    """
-- Give this attempt the right to run, or return the record that stands against it.
-- Returns {1, epoch, lease_until, clock, taken over?, attempts, journal} or {0, fields, clock}.
local token, lease, on_stale = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lifetime = tonumber(ARGV[4])   -- empty with on_stale="refuse": it does not expire
local resumes = ARGV[5] == '1'       -- the work has steps, so it goes on behind those of a journal
local newest = ARGV[{FINGERPRINTS}]  -- the first fingerprint; older ones follow

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local exists = redis.call('EXISTS', KEYS[1]) == 1
local record = exists and redis.call('HMGET', KEYS[1], {FIELDS}) or {}
local fingerprint, state, epoch, owner = record[4], record[5], tonumber(record[6]), record[7]
local lease_until, created_at = tonumber(record[8]), record[9]
local expires_at, attempts, steps = tonumber(record[11]), tonumber(record[12]), record[15]

-- An incomplete record is an error, and not an absent record: its work may have been done.
if exists then
  local running = state == 'IN_PROGRESS'
  local ended = state == 'COMPLETED' or state == 'FAILED' or state == 'RELEASED'
  if not (epoch and owner and tonumber(created_at) and attempts
          and ((running and lease_until) or (ended and expires_at)
               or (state == 'FAILED' and steps))) then
    return redis.error_reply('CORRUPT this is not a whole record')
  end
end

-- This attempt has already won: the answer was lost, and the client sent the claim again.
if state == 'IN_PROGRESS' and owner == token then
  redis.call('HSET', KEYS[1], 'token', token)   -- WAIT waits for a write, so this is one
  return {1, record[6], record[8], now, 0, attempts, steps}
end

local live = state == 'IN_PROGRESS' and lease_until > now
local expired = expires_at and expires_at <= now and not live
local same = not fingerprint
for i = {FINGERPRINTS}, #ARGV do
  same = same or fingerprint == ARGV[i]
end
local ready = same and (not steps or resumes)   -- the request is the same, and skips what is noted

local won =
  not state                                     -- absent
  or expired                                    -- its time is over, and no lease is live
  or state == 'RELEASED'                        -- released: any request may claim it
  or (state == 'FAILED' and ready)              -- failed, and the request is ready
  or (state == 'IN_PROGRESS' and ready          -- in progress, the request is ready,
      and not live                              -- the lease has lapsed,
      and on_stale == 'take_over')              -- and it may be taken over

if not won then
  return {0, record, now}
end

local again = state and not expired             -- the record stays, with what it knows
local taken_over = again and state == 'IN_PROGRESS'
if not (again and fingerprint) then
  fingerprint = newest
end
if not again then
  created_at, attempts, steps = whole(now), 0, false
end
if steps and not expires_at then
  lifetime = nil                                -- held: a claim does not end that
end
attempts = attempts + 1
epoch = whole(math.max(now, (epoch or 0) + 1))  -- it only grows
lease_until = now + lease

if state then
  redis.call('DEL', KEYS[1])                    -- with its expiry, and all of an earlier attempt
end
local fields = {
  {NAMED}, 'state', 'IN_PROGRESS',
  'epoch', epoch, 'token', token, 'lease_until', whole(lease_until),
  'created_at', created_at, 'updated_at', whole(now), 'attempts', whole(attempts),
  'error', ''
}
if fingerprint then
  table.insert(fields, 'fingerprint')
  table.insert(fields, fingerprint)
end
if steps then
  table.insert(fields, 'steps')
  table.insert(fields, steps)
end
if lifetime then
  table.insert(fields, 'expires_at')
  table.insert(fields, whole(now + lifetime))
end
redis.call('HSET', KEYS[1], unpack(fields))
if lifetime then
  redis.call('PEXPIREAT', KEYS[1], whole(math.ceil((now + lifetime) / 1000)))
end
return {1, epoch, lease_until, now, taken_over and 1 or 0, attempts, steps}
""",
)

COMPLETE = _script(
    "COMPLETE",
    """
-- Keep the result; return when it expires, nil if the proof does not stand, 0 without a record.
local epoch, token, retention, result = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'expires_at')
if not seen[1] and redis.call('EXISTS', KEYS[1]) == 0 then
  return 0                                      -- deleted, evicted or lost
end
if seen[2] ~= epoch or seen[3] ~= token then
  return false                                  -- another attempt has taken over
end
if seen[1] == 'COMPLETED' then
  return seen[4]                                -- by this attempt, whose answer was lost
end
if seen[1] ~= 'IN_PROGRESS' then
  return false                                  -- this attempt has failed or released it
end

local expires_at = whole(now + retention)
redis.call('HDEL', KEYS[1], 'lease_until', 'steps')
redis.call('HSET', KEYS[1], 'state', 'COMPLETED', 'result', result, 'updated_at', whole(now),
           'expires_at', expires_at)
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil((now + retention) / 1000)))
return expires_at
""",
)

FAIL = _script(
    "FAIL",
    """
-- End the lease and keep the fingerprint; nothing happens if the proof does not stand.
local epoch, token, retention, failure = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local held = ARGV[5] == '1'          -- a call is uncertain: the record does not expire

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'expires_at')
if seen[1] ~= 'IN_PROGRESS' or seen[2] ~= epoch or seen[3] ~= token then
  return 0
end

local expires_at = tonumber(seen[4]) or now + retention   -- none with on_stale="refuse"
redis.call('HDEL', KEYS[1], 'lease_until', 'expires_at')
redis.call('HSET', KEYS[1], 'state', 'FAILED', 'error', failure, 'updated_at', whole(now))
if held and redis.call('HEXISTS', KEYS[1], 'steps') == 1 then   -- or else no call was made
  redis.call('PERSIST', KEYS[1])
  return 1
end
redis.call('HSET', KEYS[1], 'expires_at', whole(expires_at))
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(expires_at / 1000)))
return 1
""",
)

RELEASE = _script(
    "RELEASE",
    """
-- End the lease and forget the fingerprint; nothing happens if the proof does not stand.
local epoch, token, retention = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'expires_at')
if seen[1] ~= 'IN_PROGRESS' or seen[2] ~= epoch or seen[3] ~= token then
  return 0
end

local expires_at = tonumber(seen[4]) or now + retention   -- none with on_stale="refuse"
redis.call('HDEL', KEYS[1], 'lease_until', 'fingerprint', 'steps')
redis.call('HSET', KEYS[1], 'state', 'RELEASED', 'updated_at', whole(now),
           'expires_at', whole(expires_at))
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(expires_at / 1000)))
return 1
""",
)

NOTE = _script(
    "NOTE",
    """
-- Append an entry to the journal; return 1, nil if the proof does not stand, 0 without a record.
local epoch, token, duration, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local held, entry = ARGV[5] == '1', ARGV[6]     -- held: the record does not expire

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'expires_at', 'steps')
if not seen[1] and redis.call('EXISTS', KEYS[1]) == 0 then
  return 0                                      -- deleted, evicted or lost
end
if seen[1] ~= 'IN_PROGRESS' or seen[2] ~= epoch or seen[3] ~= token then
  return false
end

local lease_until, expires_at = now + duration, tonumber(seen[4])
if not expires_at or expires_at < now + lifetime / 2 then
  expires_at = now + lifetime
end
redis.call('HDEL', KEYS[1], 'lease_until', 'expires_at')
redis.call('HSET', KEYS[1], 'steps', (seen[5] or '') .. entry, 'lease_until', whole(lease_until))
if held then
  redis.call('PERSIST', KEYS[1])
  return 1
end
redis.call('HSET', KEYS[1], 'expires_at', whole(expires_at))
-- The server must not delete it under a live lease either.
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(math.max(expires_at, lease_until) / 1000)))
return 1
""",
)

RENEW = _script(
    "RENEW",
    """
-- Extend the lease to `duration` from now; return whether the proof still stands.
local epoch, token, duration = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'expires_at')
if seen[1] ~= 'IN_PROGRESS' or seen[2] ~= epoch or seen[3] ~= token then
  return 0
end

local lease_until = now + duration
redis.call('HDEL', KEYS[1], 'lease_until')
redis.call('HSET', KEYS[1], 'lease_until', whole(lease_until))
local expires_at = tonumber(seen[4])
if expires_at and lease_until > expires_at then
  -- A record does not expire under a live lease, so the server must not delete it either.
  redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(lease_until / 1000)))
end
return 1
""",
)

LOOK = _script(
    "LOOK",
    """
-- Return {the record's fields, the clock}, or nil if there is no record.
local results = ARGV[1] ~= '0'       -- return the result; else '' if there is one
if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local record = redis.pcall('HMGET', KEYS[1], {FIELDS})
if record.err then
  record = {}                                   -- no hash: a damaged record
elseif record[{RESULT}] and not results then
  record[{RESULT}] = ''
end
return {record, now}
""",
)

RESOLVE = _script(
    "RESOLVE",
    """
-- Do what an operator decided, if the record is still as it was seen; return whether it was done.
local action, seen_epoch, seen_state, force = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local token, retention = ARGV[5], tonumber(ARGV[6])
local kept = ARGV[7]                            -- a result, or the entry of "resume"
local length, held = tonumber(ARGV[8]), ARGV[9] == '1'   -- of the journal that was seen

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function whole(number) return string.format('%.0f', number) end

local seen = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'token', 'lease_until', 'expires_at',
                        'steps')
local state, epoch, steps = seen[1], seen[2], seen[6]
local lease_until, expires_at = tonumber(seen[4]), tonumber(seen[5])
if seen[3] == token then
  return 1                                      -- done already: the answer was lost
end
if epoch ~= seen_epoch or state ~= seen_state then
  return 0                                      -- the record has changed since then
end
local live = state == 'IN_PROGRESS' and lease_until > now
if live and not force then
  return 0                                      -- an attempt is running
end
if expires_at and expires_at <= now and not live then
  return 0                                      -- the record has expired
end
if action ~= 'expire' and state ~= 'IN_PROGRESS' and state ~= 'FAILED' then
  return 0                                      -- COMPLETED and RELEASED can only expire
end
if length and #(steps or '') ~= length then
  return 0                                      -- a note has come since then
end

redis.call('HDEL', KEYS[1], 'lease_until', 'expires_at', 'steps')
if action == 'complete' then
  state, expires_at = 'COMPLETED', now + retention
  redis.call('HSET', KEYS[1], 'result', kept, 'error', '')
elseif action == 'release' then
  state, expires_at = 'RELEASED', expires_at or now + retention
  redis.call('HDEL', KEYS[1], 'fingerprint')
elseif action == 'resume' then
  state, expires_at = 'FAILED', not held and now + retention
  if steps then
    redis.call('HSET', KEYS[1], 'steps', steps .. kept)
  end
else
  expires_at = now
  if state == 'IN_PROGRESS' then
    state = 'RELEASED'
    redis.call('HDEL', KEYS[1], 'fingerprint')
  end
end
redis.call('HSET', KEYS[1], 'state', state, 'epoch', whole(tonumber(epoch) + 1), 'token', token,
           'updated_at', whole(now))
if not expires_at then
  redis.call('PERSIST', KEYS[1])
  return 1
end
redis.call('HSET', KEYS[1], 'expires_at', whole(expires_at))
-- An expired record stays for a minute: if the answer is lost, the same decision meets its token.
local gone_at = action == 'expire' and now + 60000000 or expires_at
redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(gone_at / 1000)))
return 1
""",
)

ERASE = _script(
    "ERASE",
    """
-- Delete the record, unless an attempt is running; return whether it is gone.
local force = ARGV[1] == '1'

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local seen = redis.call('HMGET', KEYS[1], 'state', 'lease_until')
if seen[1] == 'IN_PROGRESS' and tonumber(seen[2]) > now and not force then
  return 0                                      -- an attempt is running
end
redis.call('DEL', KEYS[1])
return 1
""",
)
