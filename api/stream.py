"""Who is told when a job's stream grows: one subscription connection per process, fanned out to every reader.

It wakes readers, and they read the range they miss, so a wake lost or doubled is harmless. A reader who is awake for
each piece of news has the tokens with it, and reads nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from uuid import UUID

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from db.models import Status
from db.stream import News, channel_of

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # a job that was silent for this long has its row checked
CHECK_AFTER_SECONDS = 0.05  # a job that is new has it soon, together with others; its start goes first
RECONNECT_SECONDS = 0.5
STOP_SECONDS = 0.5
NEVER = float("-inf")
IDLE_CHANNEL = "stream:none"  # a connection without subscription cannot be listened to

Statuses = Callable[[list[UUID]], Awaitable[dict[UUID, str]]]


class Watch:
    """One reader's place in the hub; with `only_end`, it sleeps through the tokens, and unless it `wants_rows` through
    the start."""

    def __init__(self, status: str, *, only_end: bool = False, wants_rows: bool = True) -> None:
        self.status = status  # of the row, as the reader last saw it; written by the reader
        self.only_end = only_end
        self.wants_rows = wants_rows
        self.is_row_due = False  # the reader should look at the row; it clears this before it looks
        self._woken = asyncio.Event()
        self._news: News | None = None  # None: there was none since the last wait, or more than one piece

    def is_news(self, status: str) -> bool:
        """Whether the reader has to be told that this is the row's status now."""
        return status != self.status and (self.wants_rows or status != Status.RUNNING)

    def wake(self, news: News | None = None, *, is_row_due: bool = False) -> None:
        self.is_row_due = self.is_row_due or is_row_due
        self._news = None if self._woken.is_set() else news
        self._woken.set()

    def take_news(self) -> News | None:
        """What woke the reader, once; None when that was not told, or more than that happened: the stream tells."""
        news, self._news = self._news, None
        return news

    @property
    def is_woken(self) -> bool:
        """Whether the next wait is over at once."""
        return self._woken.is_set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until something may have happened since the last wait, or for so long."""
        if seconds is None:
            await self._woken.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()


class _Channel:
    """The readers of one job."""

    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        self.heard_at = NEVER

    def wake(self, *, is_end: bool = False) -> None:
        for watch in self.watches:
            watch.wake(is_row_due=is_end)

    def tell(self, message: bytes) -> None:
        """Wake those whom it concerns; a stream without tokens was but opened. What says nothing wakes all."""
        try:
            news = News.of(message)
        except ValueError:
            self.wake()
            return
        if news.is_end:
            self.wake(is_end=True)
            return
        for watch in self.watches:
            if not watch.only_end and (news.num_tokens or watch.wants_rows):
                watch.wake(news)


class StreamHub:
    """Wakes the readers of a job when its stream grows, and when its row moved without the stream saying so."""

    def __init__(self, redis: Redis, statuses: Statuses, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._redis = redis
        self._statuses = statuses
        self._silent_seconds = silent_seconds
        self._channels: dict[UUID, _Channel] = {}  # written by the event loop, as is all below
        self._by_name: dict[bytes, _Channel] = {}
        self._changed: asyncio.Queue[bytes] = asyncio.Queue()  # channels whose first reader came or last one left
        self._is_check_due = asyncio.Event()  # a reader or a subscription is new
        self._pubsub: PubSub | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loops = (self._listen(), self._subscribe(), self._check_silent())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()  # again: a driver may have made an error of its own of the first
            await asyncio.wait(running, timeout=STOP_SECONDS)

    @contextmanager
    def watch(self, job_id: UUID, status: str, *, only_end: bool = False, wants_rows: bool = True) -> Iterator[Watch]:
        """A watch on the job, whose row had `status` a moment ago.

        It is woken once when the subscription stands: read after every wake.
        """
        watch = Watch(status, only_end=only_end, wants_rows=wants_rows)
        name = channel_of(job_id).encode()
        channel = self._channels.get(job_id)
        if channel is None:
            channel = self._channels[job_id] = self._by_name[name] = _Channel()
            self._changed.put_nowait(name)
        else:
            self._check_soon(channel)  # its subscription may stand since before the status was read
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
            channel = None if message is None else self._by_name.get(message["channel"])
            if message is None or channel is None:
                continue
            if message["type"] == "subscribe":
                channel.wake()
                self._check_soon(channel)
            elif message["type"] == "message":
                channel.heard_at = time.monotonic()
                channel.tell(message["data"])

    def _check_soon(self, channel: _Channel) -> None:
        """What its readers do not know yet may have happened without a message that they could hear."""
        channel.heard_at = NEVER
        self._is_check_due.set()

    async def _check_silent(self) -> None:
        """Ask Postgres, in one query, about every job that was silent for long; wake who knows another status.

        So readers of jobs that wait cost a statement for all of them together, however they came.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._silent_seconds / 5):
                    await self._is_check_due.wait()
                    await asyncio.sleep(CHECK_AFTER_SECONDS)
            self._is_check_due.clear()
            now = time.monotonic()
            silent = [id for id, channel in self._channels.items() if now - channel.heard_at >= self._silent_seconds]
            if silent:
                self._note_heard(silent, now)  # before asking: who comes meanwhile asks again
                try:
                    self._note(await self._statuses(silent), silent)
                except Exception as error:  # whatever it is, the next round tries again, and streams must go on
                    log.warning("cannot check silent jobs", extra={"error": str(error)})
                    self._note_heard(silent, NEVER)

    def _note_heard(self, job_ids: Iterable[UUID], at: float) -> None:
        for channel in filter(None, map(self._channels.get, job_ids)):
            channel.heard_at = at

    def _note(self, statuses: Mapping[UUID, str], asked: Iterable[UUID]) -> None:
        for job_id in asked:
            channel = self._channels.get(job_id)
            for watch in channel.watches if channel else ():
                if watch.is_news(statuses.get(job_id, "gone")):
                    watch.wake(is_row_due=True)
