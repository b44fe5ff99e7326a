"""Who is told when a job's stream grows: one subscription connection per process, fanned out to every reader.

The hub carries no tokens. It wakes readers, and they read the range they miss, so a wake lost or doubled is harmless.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from db.stream import channel_of

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # a job that was silent for this long has its row checked
RECONNECT_SECONDS = 0.5
IDLE_CHANNEL = "stream:none"  # a connection without subscription cannot be listened to

Statuses = Callable[[list[UUID]], Awaitable[dict[UUID, str]]]


class Watch:
    """One reader's place in the hub; with `only_end`, it sleeps through the tokens."""

    def __init__(self, *, only_end: bool = False) -> None:
        self.only_end = only_end
        self._woken = asyncio.Event()
        self.is_row_due = True  # the reader should look at the row; it clears this before it looks

    def wake(self, *, is_row_due: bool = False) -> None:
        self.is_row_due = self.is_row_due or is_row_due
        self._woken.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until something may have happened since the last wait, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()


class _Channel:
    """The readers of one job."""

    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        self.heard_at = time.monotonic()
        self.status: str | None = None  # of the row, as last checked

    def wake(self, *, is_token: bool = False, is_row_due: bool = False) -> None:
        for watch in self.watches:
            if not (is_token and watch.only_end):
                watch.wake(is_row_due=is_row_due)


class StreamHub:
    """Wakes the readers of a job when its stream grows, and when its row moved without the stream saying so."""

    def __init__(self, redis: Redis, statuses: Statuses, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._redis = redis
        self._statuses = statuses
        self._silent_seconds = silent_seconds
        self._channels: dict[UUID, _Channel] = {}  # written by the event loop, as is all below
        self._by_name: dict[bytes, _Channel] = {}
        self._changed: asyncio.Queue[bytes] = asyncio.Queue()  # channels whose first reader came or last one left
        self._pubsub: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loops = (self._listen(), self._subscribe(), self._check_silent())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def watch(self, job_id: UUID, *, only_end: bool = False) -> Iterator[Watch]:
        """A watch on the job's stream. It is woken once when the subscription stands: read after every wake."""
        watch = Watch(only_end=only_end)
        name = channel_of(job_id).encode()
        channel = self._channels.get(job_id)
        if channel is None:
            channel = self._channels[job_id] = self._by_name[name] = _Channel()
            self._changed.put_nowait(name)
        channel.watches.add(watch)
        try:
            yield watch
        finally:
            channel.watches.discard(watch)
            if not channel.watches:
                del self._channels[job_id], self._by_name[name]
                self._changed.put_nowait(name)

    async def _subscribe(self) -> None:
        """Follow the comings and goings of readers, one at a time, so that the last state of a channel wins.

        Not in the readers' own tasks: one that is being cancelled can wait for nothing, not even to unsubscribe.
        """
        while True:
            name = await self._changed.get()
            pubsub = self._pubsub
            if pubsub is None:
                continue  # the next connection begins with what is watched
            try:
                if name in self._by_name:
                    await pubsub.subscribe(name)
                else:
                    await pubsub.unsubscribe(name)
            except (RedisError, OSError):
                self._changed.put_nowait(name)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        """Hear the channels for as long as the process lives, over one connection after another."""
        while True:
            pubsub = self._redis.pubsub()
            try:
                names = list(self._by_name)
                await pubsub.subscribe(IDLE_CHANNEL, *names)
                self._pubsub = pubsub
                for name in self._by_name.keys() - set(names):  # who came while it connected
                    self._changed.put_nowait(name)
                await self._hear(pubsub)
            except (RedisError, OSError) as error:
                log.warning("token streams: Redis is away", extra={"error": str(error)})
            finally:
                self._pubsub = None
                with suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _hear(self, pubsub: PubSub) -> None:
        """Wake a channel's readers at each message, and at the confirmation of its subscription."""
        while True:
            message = await pubsub.get_message(timeout=self._silent_seconds)
            if message is not None and message["type"] in ("message", "subscribe"):
                channel = self._by_name.get(message["channel"])
                if channel is not None:
                    channel.heard_at = time.monotonic()
                    channel.wake(is_token=message["type"] == "message" and message["data"] != b"end")

    async def _check_silent(self) -> None:
        """Ask Postgres, in one query, about every job that was silent for long; wake those whose status moved."""
        while True:
            await asyncio.sleep(self._silent_seconds / 5)
            now = time.monotonic()
            silent = [id for id, channel in self._channels.items() if now - channel.heard_at >= self._silent_seconds]
            if not silent:
                continue
            try:
                statuses = await self._statuses(silent)
            except Exception as error:  # whatever it is, the next round tries again, and streams must go on
                log.warning("cannot check silent jobs", extra={"error": str(error)})
                continue
            for job_id in silent:
                self._note(job_id, statuses.get(job_id, "gone"), now)

    def _note(self, job_id: UUID, status: str, now: float) -> None:
        channel = self._channels.get(job_id)
        if channel is None:
            return
        channel.heard_at = now
        if channel.status != status:
            channel.status = status
            channel.wake(is_row_due=True)
