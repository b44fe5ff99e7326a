"""API keys: hashed at rest, found by digest, the first one made once and kept in the data directory."""

import base64
import stat

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from db.keys import create_key, ensure_first_key, find_key
from db.models import ApiKey, WebhookEndpoint
from db.settings import Settings


async def test_key_is_found_until_it_is_revoked_and_never_stored(async_engine: AsyncEngine) -> None:
    async with AsyncSession(async_engine) as session:
        key = await session.run_sync(lambda sync: create_key(sync, tenant="t", name="n", scopes=["*"]))
        assert key.startswith("hr_") and len(key) >= 3 + 43  # 256 bits
        row = await find_key(session, key)
        assert row is not None and (row.tenant, row.hint) == ("t", key[-4:])
        assert key.encode() not in row.digest and len(row.digest) == 32
        assert await find_key(session, key + "x") is None
        await session.execute(update(ApiKey).values(revoked_at=func.now()))
        assert await find_key(session, key) is None


def test_tenants_webhook_secret_is_made_with_its_first_key_and_is_one(session: Session) -> None:
    for name in ("first", "second"):
        create_key(session, tenant="t", name=name, scopes=["*"])
    secret = session.scalars(select(WebhookEndpoint.secret)).one()
    assert secret.startswith("whsec_") and len(base64.b64decode(secret.removeprefix("whsec_"))) == 24


def test_first_start_makes_key_and_secret_and_later_ones_find_them(session: Session, settings: Settings) -> None:
    first = ensure_first_key(session, settings)
    assert ensure_first_key(session, settings) == first
    for name, content in (("api-key", first.key), ("webhook-secret", first.webhook_secret)):
        path = settings.data_dir / name
        assert path.read_text().strip() == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert session.scalar(select(func.count()).select_from(ApiKey)) == 1


def test_new_database_takes_key_and_secret_from_the_files(session: Session, settings: Settings) -> None:
    first = ensure_first_key(session, settings)
    for table in (ApiKey, WebhookEndpoint):
        session.query(table).delete()
    assert ensure_first_key(session, settings) == first
    assert session.scalars(select(WebhookEndpoint.secret)).one() == first.webhook_secret


def test_key_of_the_environment_wins_and_is_written_down(session: Session, settings: Settings) -> None:
    ensure_first_key(session, settings)
    chosen = settings.model_copy(update={"api_key": "hr_chosen"})
    assert ensure_first_key(session, chosen).key == "hr_chosen"
    assert (settings.data_dir / "api-key").read_text() == "hr_chosen\n"
    assert ensure_first_key(session, settings).key == "hr_chosen"
