"""Keys with limits and scopes, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db.key_limits import KeyLimits
from db.keys import create_key
from db.settings import Settings
from tests.api.serving import make_client, serve


def make_key(engine: Engine, *scopes: str, **limits: int) -> str:
    """A key of the first tenant; without scopes it may do everything."""
    with Session(engine) as session, session.begin():
        own = KeyLimits(**limits)
        return create_key(session, tenant="default", name="limited", scopes=scopes or ["*"], limits=own)


@asynccontextmanager
async def api_of(settings: Settings, key: str, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client with this key, of an API of its own with other settings."""
    async with serve(settings.model_copy(update=changes)) as url, make_client(url, key) as client:
        yield client
