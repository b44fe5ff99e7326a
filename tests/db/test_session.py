"""What connections do not do: tell, and outlive their server."""

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.servers import Servers

FAILING = text("SELECT 1 / (length(:prompt) - length(:prompt))")
PID = text("SELECT pg_backend_pid()")
PROMPT = {"prompt": "what nobody else may read"}


def test_error_of_a_statement_does_not_show_what_a_client_wrote(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(DBAPIError) as raised:
        connection.execute(FAILING, PROMPT)
    assert "division by zero" in str(raised.value)
    assert PROMPT["prompt"] not in str(raised.value)


async def test_error_of_an_asynchronous_statement_does_not_show_it_either(async_engine: AsyncEngine) -> None:
    async with async_engine.connect() as connection:
        with pytest.raises(DBAPIError) as raised:
            await connection.execute(FAILING, PROMPT)
    assert PROMPT["prompt"] not in str(raised.value)


def test_the_connection_used_last_is_used_next_whose_statements_are_planned(engine: Engine) -> None:
    with engine.connect() as one, engine.connect() as other:
        pid = one.scalar(PID)
        assert other.scalar(PID) != pid
        other.close()
        one.close()
    for _ in range(2):
        with engine.connect() as next_one:
            assert next_one.scalar(PID) == pid


def test_connections_of_a_server_that_was_restarted_are_replaced_unseen(servers: Servers, engine: Engine) -> None:
    with engine.connect() as one, engine.connect() as two:
        old = {connection.scalar(PID) for connection in (one, two)}
    servers.postgres.stop()
    servers.postgres.start()
    with engine.connect() as one, engine.connect() as two:
        assert {connection.scalar(PID) for connection in (one, two)}.isdisjoint(old)


async def test_asynchronous_connections_are_replaced_unseen_too(servers: Servers, async_engine: AsyncEngine) -> None:
    async with async_engine.connect() as one, async_engine.connect() as two:
        old = {await connection.scalar(PID) for connection in (one, two)}
    servers.postgres.kill()
    servers.postgres.start()
    async with async_engine.connect() as one, async_engine.connect() as two:
        assert {await connection.scalar(PID) for connection in (one, two)}.isdisjoint(old)
