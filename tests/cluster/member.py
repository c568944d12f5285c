"""A member of a consumer that is none of ours: plain commands on a plain socket, written from the
specification of the wire format alone. It keeps to the fair share, has no fence, and counts whole seconds.

    member.py SOCKET TOPIC CONSUMER PARTITIONS POD TTL_SECONDS RENEW_SECONDS LOG INSTANCE

It writes what it handles to LOG as INSTANCE, until SIGTERM.
"""

import hashlib
import os
import signal
import socket
import sys
import time
from datetime import datetime, timezone

PREFIX = "re:"

# The lease cycle. KEYS: the ownership hash. ARGV: my value, TTL in seconds, partitions, my presence field.
CYCLE = """
local hash, me, ttl, n, presence = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
redis.call('HSET', hash, presence, me)
redis.call('HEXPIRE', hash, ttl, 'FIELDS', 1, presence)
local members = 0
for _, field in ipairs(redis.call('HKEYS', hash)) do
  if string.sub(field, 1, 2) == 'i:' then members = members + 1 end
end
local cap = math.ceil(n / math.max(members, 1))
local held = {}
for p = 0, n - 1 do
  if redis.call('HGET', hash, tostring(p)) == me then held[#held + 1] = p end
end
while #held > cap do
  redis.call('HDEL', hash, tostring(table.remove(held)))
end
for _, p in ipairs(held) do
  redis.call('HEXPIRE', hash, ttl, 'FIELDS', 1, tostring(p))
end
for p = 0, n - 1 do
  if #held >= cap then break end
  if redis.call('HSETNX', hash, tostring(p), me) == 1 then
    redis.call('HEXPIRE', hash, ttl, 'FIELDS', 1, tostring(p))
    held[#held + 1] = p
  end
end
table.sort(held)
return held
"""

# ARGV: my value, then fields.
RELEASE = """
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
"""


class Redis:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb")

    def __call__(self, *args):
        return self.pipeline(args)[0]

    def pipeline(self, *commands):
        out = bytearray()
        for args in commands:
            out += b"*%d\r\n" % len(args)
            for arg in args:
                arg = arg if isinstance(arg, bytes) else str(arg).encode()
                out += b"$%d\r\n%s\r\n" % (len(arg), arg)
        self.socket.sendall(out)
        replies = [self.reply() for _ in commands]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def reply(self):
        line = self.replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        mark, rest = line[:1], line[1:-2]
        if mark == b"+":
            return rest
        if mark == b"-":
            return RuntimeError(rest.decode())
        if mark == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if mark == b"$":
            return self.replies.read(length + 2)[:-2]
        return [self.reply() for _ in range(length)]


def instance_id(pod):
    """The id that a pod's name stands for: version and variant set, three groups turned round."""
    b = bytearray(hashlib.sha256(pod.encode()).digest()[:16])
    b[6] = b[6] & 0x0F | 0x80
    b[8] = b[8] & 0x3F | 0x80
    groups = [b[3::-1], b[5:3:-1], b[7:5:-1], b[8:10], b[10:]]
    return "-".join(bytes(g).hex() for g in groups)


def escaped(text):
    plain = lambda b: 0x21 <= b <= 0x7E and b not in b"%>"
    return "".join(chr(b) if plain(b) else "%%%02X" % b for b in text) or "-"


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Member:
    def __init__(self, path, topic, consumer, partitions, pod, ttl, renew, log, name):
        self.redis = Redis(path)
        self.topic, self.name = topic, name
        self.partitions, self.ttl, self.renew = int(partitions), int(ttl), float(renew)
        self.streams = [f"{PREFIX}s:{{{topic}}}:{p}" for p in range(self.partitions)]
        self.positions = f"{PREFIX}p:{{{topic}}}:{consumer}"
        self.hash = f"{PREFIX}o:{{{topic}}}:{consumer}"
        self.id = instance_id(pod)
        self.value = f"{self.id}|{pod}"
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.held, self.cursor, self.epoch = [], {}, {}
        self.over = False

    def probe(self):
        field = f"__hexpire-probe:{self.id}"
        self.redis("HSET", self.hash, field, 1)
        self.redis("HEXPIRE", self.hash, 1, "FIELDS", 1, field)
        self.redis("HDEL", self.hash, field)

    def cycle(self):
        presence = f"i:{self.id}"
        held = self.redis("EVAL", CYCLE, 1, self.hash, self.value, self.ttl, self.partitions, presence)
        if held != self.held:
            # everything is stored at this point, and all lanes begin anew
            stored = self.redis("HMGET", self.positions, *range(self.partitions))
            for p in held:
                if p not in self.held:
                    self.epoch[p] = now_ns()
                self.cursor[p] = (stored[p] or b"0-0").split(b"|")[0]
            self.held = held

    def read(self):
        if not self.held:
            return False
        keys = [self.streams[p] for p in self.held]
        cursors = [self.cursor[p] for p in self.held]
        found = self.redis("XREAD", "COUNT", 20, "STREAMS", *keys, *cursors)
        for key, entries in found or []:
            p = self.streams.index(key.decode())
            for entry, fields in entries:
                pairs = dict(zip(fields[::2], fields[1::2]))
                self.record("started", p, entry, pairs.get(b"k", b""))
                self.record("handled", p, entry, pairs.get(b"k", b""))
                self.cursor[p] = entry
            self.store(p)
        return bool(found)

    def record(self, kind, p, entry, key):
        line = f">{kind} {now_ns()} {self.topic} {p} {entry.decode()} {escaped(key)} {self.name} {self.epoch[p]} .\n"
        os.write(self.log, line.encode())

    def store(self, p):
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f") + "0+00:00"
        position = self.cursor[p] + b"|" + self.id.encode()
        self.redis.pipeline(
            ("HMGET", self.positions, p),
            ("HSET", self.positions, p, position),
            ("HSET", self.positions + ":meta", f"{p}:updatedUtc", now, f"{p}:instanceId", self.id),
        )

    def run(self):
        self.probe()
        due = 0
        while not self.over:
            if time.monotonic() >= due:
                due = time.monotonic() + self.renew
                self.cycle()
            if not self.read():
                time.sleep(0.02)
        self.redis("EVAL", RELEASE, 1, self.hash, self.value, *self.held, f"i:{self.id}")


member = Member(*sys.argv[1:])


def end(_signal, _frame):
    member.over = True


signal.signal(signal.SIGTERM, end)
member.run()
