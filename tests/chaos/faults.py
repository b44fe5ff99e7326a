"""What goes wrong, and when: a schedule that is a function of the seed, and the hands that carry it out."""

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import redis

from tests.chaos.process import limit_file_size, signal_tree
from tests.chaos.world import World
from tests.servers import Server

LEASE_SECONDS = 3.0  # of the world's workers: pauses are shorter and longer
# How long a target is left alone after a fault, so that it can do some work before the next one.
RECOVERY_SECONDS = {
    "engine": 8.0,
    "api": 4.0,
    "tasks": 5.0,
    "batches": 5.0,
    "beat": 4.0,
    "postgres": 6.0,
    "valkey": 4.0,
}
WEIGHTS = {
    "engine-1": 6,
    "engine-2": 6,
    "api-1": 4,
    "api-2": 4,
    "tasks-1": 3,
    "tasks-2": 3,
    "batches-1": 2,
    "batches-2": 2,
    "beat": 2,
    "valkey": 4,
    "postgres": 3,
}
STORES = ("postgres", "valkey")
KINDS = {"kill": 62, "pause": 20, "flush": 5, "restart": 5, "cut": 6, "full": 4}
SPARE_BYTES = 4096  # of a disk that is about to be full
LINKS = ("postgres-link", "valkey-link")


@dataclass(frozen=True)
class Fault:
    """One fault. `seconds`: how long its target stays down, or paused, or cut off."""

    at: float  # seconds after the storm's begin
    kind: str
    target: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:6.1f} s {self.kind} {self.target}" + (f" for {self.seconds:.1f} s" if self.seconds else "")


@dataclass
class Happened:
    """A fault as it was carried out, on the clock of the run."""

    fault: Fault
    began: float  # monotonic
    ended: float = float("inf")


def schedule(seed: int, *, storm_seconds: float, every_seconds: float) -> list[Fault]:
    """The faults of a storm. Each target gets time to recover; different targets may be down together."""
    dice = random.Random(seed)
    free_at: dict[str, float] = {}
    faults, at = [], 0.0
    while (at := at + every_seconds * dice.uniform(0.4, 1.6)) < storm_seconds:
        while True:
            (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
            target, seconds = _target(dice, kind), _seconds(dice, kind)
            if free_at.get(target, 0.0) <= at:
                break
        faults.append(Fault(round(at, 1), kind, target, round(seconds, 1)))
        free_at[target] = at + seconds + RECOVERY_SECONDS.get(target.partition("-")[0], seconds)
    return faults


def _target(dice: random.Random, kind: str) -> str:
    if kind in ("flush", "full"):
        return "valkey"
    if kind == "restart":
        return dice.choice(STORES)
    if kind == "cut":
        return dice.choice(LINKS)
    return dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


def _seconds(dice: random.Random, kind: str) -> float:
    if kind == "flush":
        return 0.0
    if kind == "full":
        return dice.uniform(1.0, 4.0)
    if kind in ("pause", "cut"):
        is_long = dice.random() < 0.4
        return LEASE_SECONDS * (dice.uniform(1.3, 2.5) if is_long else dice.uniform(0.1, 0.8))
    return dice.choice((0.0, dice.uniform(0.2, 3.0)))


class Faults:
    """Carries a schedule out on a world, and keeps what happened when."""

    def __init__(self, world: World, faults: list[Fault]) -> None:
        self._world = world
        self._faults = faults
        self.happened: list[Happened] = []
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._acts: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "kill": self._kill,
            "pause": self._pause,
            "restart": self._restart,
            "flush": self._flush,
            "cut": self._cut,
            "full": self._full,
        }

    @property
    def num_kills(self) -> int:
        return sum(happened.fault.kind == "kill" for happened in self.happened)

    async def run(self) -> None:
        """Return when the last one is over, and everything that it kept down runs again."""
        began = monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                await asyncio.sleep(max(0.0, began + fault.at - monotonic()))
                print(fault, flush=True)
                group.create_task(self._one(fault))

    async def _one(self, fault: Fault) -> None:
        async with self._turns[fault.target]:  # on a slow machine a store may not be back from its last fault yet
            happened = Happened(fault, monotonic())
            self.happened.append(happened)
            await self._acts[fault.kind](fault)
            happened.ended = monotonic()

    async def _kill(self, fault: Fault) -> None:
        if fault.target in STORES:
            self._store(fault.target).kill()
            await asyncio.sleep(fault.seconds)
            await self._start_store(fault.target)
            return
        with self._down(fault.target):
            self._world.processes[fault.target].kill()
            await asyncio.sleep(fault.seconds)
            self._world.processes[fault.target].start()

    async def _pause(self, fault: Fault) -> None:
        with self._down(fault.target):
            pid = self._pid(fault.target)
            signal_tree(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            signal_tree(pid, signal.SIGCONT)

    async def _restart(self, fault: Fault) -> None:
        await asyncio.to_thread(self._store(fault.target).stop)
        await asyncio.sleep(fault.seconds)
        await self._start_store(fault.target)

    async def _flush(self, fault: Fault) -> None:
        with _redis_may_be_away():
            await asyncio.to_thread(self._world.redis.flushall)

    async def _cut(self, fault: Fault) -> None:
        await self._world.links[fault.target].cut(fault.seconds)

    async def _full(self, fault: Fault) -> None:
        """The disk of the append-only file is full: Valkey refuses writes."""
        pid = self._pid("valkey")
        directory = self._world.settings.data_dir.parent / "valkey"
        limit_file_size(pid, max(path.stat().st_size for path in directory.rglob("*.aof")) + SPARE_BYTES)
        await asyncio.sleep(fault.seconds)
        limit_file_size(pid, None)

    @contextmanager
    def _down(self, name: str) -> Iterator[None]:
        self._world.under_fault.add(name)
        try:
            yield
        finally:
            self._world.under_fault.discard(name)

    def _pid(self, name: str) -> int:
        if name not in STORES:
            return self._world.processes[name].pid
        process = self._store(name).process
        assert process is not None
        return process.pid

    def _store(self, name: str) -> Server:
        return self._world.servers.postgres if name == "postgres" else self._world.servers.valkey

    async def _start_store(self, name: str) -> None:
        start = self._world.restart_postgres if name == "postgres" else self._world.servers.valkey.start
        await asyncio.to_thread(start)


@contextmanager
def _redis_may_be_away() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        print(f"         nothing was flushed: {error}", flush=True)
