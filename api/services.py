"""What the routes of one API process share: connections, caches, the stream hub. Made and closed by `api.app`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from uuid import UUID
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from api.batcher import Batcher
from api.cache import TtlCache
from api.grammars import GrammarChecks
from api.metrics import Metrics
from api.pace import Pace, measure
from api.rate_limits import RateLimiter
from api.stream import StreamHub
from api.texts import Texts
from db import job_queries, jobs, queue, stream_reads
from db.file_store import FileStore
from db.job_queries import Depth, Load
from db.jobs import Created, NewJob
from db.keys import KnownKey
from db.models import Worker
from db.queue import Ready
from db.rates import Drain
from db.session import make_async_engine, make_async_redis
from db.settings import Settings
from db.stream_reads import StreamRead

log = logging.getLogger(__name__)

KEY_SECONDS = 5  # how long a revoked key may go on working
CARD_SECONDS = 1
DEPTH_SECONDS = 1
EXAMPLE_SECONDS = 5  # how long the reference may name a model that is gone
PAGE_ENTRIES = 32  # what a reader gets of a stream at once, and all that waits in memory while its client is slow


@dataclass
class Services:
    """Shared by every request of the process; each part is safe to use from any of them."""

    settings: Settings
    engine: AsyncEngine
    sessions: async_sessionmaker[AsyncSession]
    # Each statement is its own transaction: for reads, and for a write that is one statement. It saves two round trips,
    # and the ROLLBACK that would end a read makes psycopg forget the connection's prepared statements.
    autocommit: async_sessionmaker[AsyncSession]
    redis: Redis
    hub: StreamHub
    files: FileStore
    metrics: Metrics
    submits: Batcher[NewJob, Created]  # of jobs without an Idempotency-Key
    pushes: Batcher[Ready, None]  # of messages, to their lists
    reads: Batcher[tuple[UUID, int], StreamRead]  # of token streams: a job's page from an index on
    rates: RateLimiter
    texts: Texts = field(default_factory=Texts)
    grammars: GrammarChecks = field(default_factory=GrammarChecks)
    keys: TtlCache[bytes, KnownKey | None] = field(default_factory=lambda: TtlCache(KEY_SECONDS))
    cards: TtlCache[str, Worker | None] = field(default_factory=lambda: TtlCache(CARD_SECONDS))
    paces: TtlCache[str, Pace] = field(default_factory=lambda: TtlCache(DEPTH_SECONDS))
    depths: TtlCache[None, list[Depth]] = field(default_factory=lambda: TtlCache(DEPTH_SECONDS))
    # Of a key's own submits, or of the lines of its batches.
    key_loads: TtlCache[tuple[UUID, bool], Load] = field(default_factory=lambda: TtlCache(DEPTH_SECONDS))
    # Of a key, or of a model's tier.
    drains: TtlCache[UUID | tuple[str, int], Drain] = field(default_factory=lambda: TtlCache(DEPTH_SECONDS))
    # Of keys whose jobs are counted, by their ids. Written by the event loop.
    turns: WeakValueDictionary[UUID, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    example_models: TtlCache[None, str | None] = field(default_factory=lambda: TtlCache(EXAMPLE_SECONDS))
    # Work that outlives its request, such as cancelling the job of a client that left. Written by the event loop.
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    streams: set[asyncio.Task[None]] = field(default_factory=set)  # that send events just now; as above

    async def queue_depths(self, *, stale_seconds: float = 0.0) -> list[Depth]:
        """Every model's and tier's depth, at most a second old, and that much older for who must not wait."""

        async def load() -> list[Depth]:
            async with self.autocommit() as session:
                return await job_queries.queue_depths(session)

        return await self.depths.get(None, load, stale_seconds=stale_seconds)

    async def pace(self, model: str) -> Pace:
        """How fast jobs of `model` start, at most a second old."""

        async def load() -> Pace:
            depths = [depth for depth in await self.queue_depths() if depth.model == model]
            async with self.autocommit() as session:
                return await measure(session, model, depths, self.settings)

        return await self.paces.get(model, load)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` to its end whatever becomes of the request that started it."""
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self._finish_background)

    def end_streams(self) -> None:
        """Cut off the clients that are being sent events: the process is to end."""
        for task in self.streams:
            task.cancel()

    def _finish_background(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed", extra={"error": str(error)})


@asynccontextmanager
async def open_services(settings: Settings, metrics: Metrics) -> AsyncIterator[Services]:
    """The services, connected lazily: the API starts, and answers 503, while the stores are away."""
    engine = make_async_engine(settings)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    autocommit = async_sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"), expire_on_commit=False)
    redis = make_async_redis(settings)

    async def statuses(job_ids: list[UUID]) -> dict[UUID, str]:
        async with autocommit() as session:
            return await job_queries.statuses(session, job_ids)

    async def create(news: list[NewJob]) -> list[Created]:
        async with autocommit() as session:
            created = await jobs.create_many(session, news, key_window=settings.key_window)
            # Before they are published: later some would have started. Only POST /v1/jobs tells it; of an embedding it
            # asks itself, for most of that kind are made by POST /v1/embeddings, which is to be spared the statement.
            asked = [each.job for each in created if each.job.kind == "job"]
            places = await job_queries.positions(session, asked, settings) if asked else {}
        return [replace(each, position=places.get(each.job.id)) for each in created]

    async def push(readies: list[Ready]) -> list[None]:
        await queue.push_async(redis, readies)
        return [None] * len(readies)

    async def read(positions: list[tuple[UUID, int]]) -> list[StreamRead]:
        return await stream_reads.read_many(redis, positions, limit=PAGE_ENTRIES)

    services = Services(
        settings=settings,
        engine=engine,
        sessions=sessions,
        autocommit=autocommit,
        redis=redis,
        hub=StreamHub(redis, statuses),
        files=FileStore(settings.resolved_files_url),
        metrics=metrics,
        submits=Batcher(create),
        pushes=Batcher(push),
        reads=Batcher(read),
        rates=RateLimiter(redis),
    )
    services.hub.start()
    try:
        yield services
    finally:
        if services.background:
            await asyncio.wait(services.background, timeout=5)
        await services.hub.stop()
        await services.grammars.close()
        await redis.aclose()
        await engine.dispose()


async def _services(request: Request) -> Services:  # a plain function would be run on a thread, for each request
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


ServicesDep = Annotated[Services, Depends(_services)]
