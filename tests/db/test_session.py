"""What connections do not do: tell."""

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

FAILING = text("SELECT 1 / (length(:prompt) - length(:prompt))")
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
