"""Which errors mean that a store takes nothing now, and which that it was asked for something wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from db.outage import is_away, is_refusing_all
from db.session import make_redis
from tests.e2e.instance import wait_until
from tests.servers import Servers, run_servers

WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"


@pytest.fixture(scope="module")
def own_servers() -> Iterator[Servers]:
    """Servers that a test may spoil."""
    with run_servers() as servers:
        yield servers


@pytest.fixture
def client(own_servers: Servers) -> Iterator[redis.Redis]:
    """Of a Valkey with the string `text`, which is started anew when the test is over."""
    client = make_redis(own_servers.settings)
    client.set("text", "a")
    yield client
    client.close()
    assert own_servers.valkey.process is not None
    if own_servers.valkey.process.poll() is None:
        own_servers.valkey.kill()
    own_servers.valkey.start()


def fill_its_memory(client: redis.Redis, servers: Servers) -> None:
    client.config_set("maxmemory", 1)


def make_it_a_replica(client: redis.Redis, servers: Servers) -> None:
    client.replicaof("127.0.0.1", "1")


def take_its_replicas(client: redis.Redis, servers: Servers) -> None:
    client.config_set("min-replicas-to-write", 1)


def fail_its_snapshot(client: redis.Redis, servers: Servers) -> None:
    """As a full disk does: here its file is a directory."""
    dump = Path(client.config_get("dir")["dir"]) / "dump.rdb"
    dump.mkdir(exist_ok=True)
    client.config_set("save", "3600 1")
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")


def occupy_it(client: redis.Redis, servers: Servers) -> None:
    """With somebody's endless script."""
    client.config_set("busy-reply-threshold", 1)
    connection = client.connection_pool.make_connection()
    connection.connect()
    connection.send_command("EVAL", "while true do end", 0)
    wait_until(lambda: isinstance(error_of(lambda: client.get("text")), redis.ResponseError))


def kill_it(client: redis.Redis, servers: Servers) -> None:
    servers.valkey.kill()


@pytest.mark.parametrize(
    "spoil", [fill_its_memory, make_it_a_replica, take_its_replicas, fail_its_snapshot, occupy_it, kill_it]
)
def test_a_redis_that_takes_no_writes_refuses_all_however_it_is_asked(
    client: redis.Redis, own_servers: Servers, spoil: Callable[[redis.Redis, Servers], None]
) -> None:
    script = client.register_script(WRITE)
    script(keys=["text"], args=["a"])
    spoil(client, own_servers)
    for ask in asks(client, script, "b"):
        error = error_of(ask)
        assert isinstance(error, redis.RedisError)
        assert is_refusing_all(error), error
        assert not is_away(error), "of Postgres only"


def test_a_redis_that_was_asked_for_something_wrong_does_not_refuse_all(client: redis.Redis) -> None:
    broken = client.register_script("return redis.call('XADD', KEYS[1], '*', 'a', ARGV[1])")
    for ask in (
        lambda: client.rpush("text", "a"),
        lambda: pipelined(client, False, "rpush", "text", "OOM MISCONF BUSY "),
        lambda: pipelined(client, True, "rpush", "text", "a"),
        lambda: broken(keys=["text"], args=["MISCONF "]),
        lambda: client.incr("text"),
        lambda: client.set("text", object()),  # type: ignore[arg-type]
    ):
        error = error_of(ask)
        assert isinstance(error, redis.RedisError)
        assert not is_refusing_all(error), error


@pytest.mark.parametrize(
    ("statements", "refuses_all"),
    [
        (["SET TRANSACTION READ ONLY", "CREATE TABLE t ()"], True),
        (["SELECT pg_terminate_backend(pg_backend_pid())"], True),
        (["DO $$ BEGIN RAISE SQLSTATE '53100'; END $$"], True),  # disk full
        (["SET LOCAL statement_timeout = 1", "SELECT pg_sleep(5)"], False),
        (["SELECT 1 / 0"], False),
        (["SELECT CAST('x' AS int)"], False),
        (["CREATE TEMP TABLE t (n int UNIQUE)", "INSERT INTO t VALUES (1), (1)"], False),
    ],
)
def test_a_postgres_that_takes_no_writes_refuses_all_and_one_statement_is_its_own(
    engine: Engine, statements: list[str], refuses_all: bool
) -> None:
    with engine.connect() as connection:
        for statement in statements[:-1]:
            connection.execute(text(statement))
        error = error_of(lambda: connection.execute(text(statements[-1])))
    assert isinstance(error, DBAPIError)
    assert is_refusing_all(error) == refuses_all


def asks(client: redis.Redis, script: Callable[..., object], value: str) -> list[Callable[[], object]]:
    """Every way in which the code writes."""
    return [
        lambda: client.set("text", value),
        lambda: pipelined(client, False, "set", "text", value),
        lambda: pipelined(client, True, "set", "text", value),
        lambda: script(keys=["text"], args=[value]),
    ]


def pipelined(client: redis.Redis, is_transaction: bool, command: str, *arguments: str) -> None:
    pipeline = client.pipeline(transaction=is_transaction)
    getattr(pipeline, command)(*arguments)
    pipeline.execute()


def error_of(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None
