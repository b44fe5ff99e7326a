"""The stores every test may use: a real PostgreSQL and a real Valkey, started once and emptied for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from db import migrate
from db.session import make_async_engine, make_async_redis, make_engine, make_redis
from db.settings import Settings
from tests.servers import Servers, empty, run_servers


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Both servers, with every table. A test that kills one starts it again."""
    with run_servers() as servers:
        migrate.upgrade(servers.settings)
        yield servers


@pytest.fixture(scope="session")
def postgres(servers: Servers) -> Settings:
    """Settings of the migrated database, for a test that looks after its own rows."""
    return servers.settings


@pytest.fixture(scope="session")
def session_engine(servers: Servers) -> Iterator[Engine]:
    """One pool for the whole run."""
    engine = make_engine(servers.settings)
    yield engine
    engine.dispose()


@pytest.fixture
def settings(servers: Servers, session_engine: Engine, tmp_path: Path) -> Settings:
    """Settings that point at both servers, emptied, and at a data directory of the test's own."""
    client = make_redis(servers.settings)
    empty(session_engine, client)
    client.close()
    return servers.settings.model_copy(update={"data_dir": tmp_path})


@pytest.fixture
def engine(settings: Settings, session_engine: Engine) -> Engine:
    """A synchronous engine on empty tables."""
    return session_engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session whose work is rolled back, whatever it commits."""
    with engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        transaction.rollback()


@pytest.fixture
async def async_engine(settings: Settings) -> AsyncIterator[AsyncEngine]:
    """An asynchronous engine on empty tables, of the test's own event loop."""
    engine = make_async_engine(settings)
    yield engine
    await engine.dispose()


@pytest.fixture
def redis_client(settings: Settings) -> Iterator[redis.Redis]:
    """A client of the empty Valkey."""
    client = make_redis(settings)
    yield client
    client.close()


@pytest.fixture
async def async_redis(settings: Settings) -> AsyncIterator[redis.asyncio.Redis]:
    """The same for the test's own event loop."""
    client = make_async_redis(settings)
    yield client
    await client.aclose()
