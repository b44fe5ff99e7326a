"""API keys: hashed at rest, found by digest, the first one made once and kept in the data directory."""

import base64
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from api.up.checks import Refused
from api.up.database import Database
from db.keys import KeyTooShort, create_key, ensure_first_key, find_key, key_row, revoke_keys
from db.models import ApiKey, WebhookEndpoint
from db.settings import Settings

CHOSEN = "hr_chosen-by-its-owner"


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
    chosen = settings.model_copy(update={"api_key": CHOSEN})
    assert ensure_first_key(session, chosen).key == CHOSEN
    assert (settings.data_dir / "api-key").read_text() == f"{CHOSEN}\n"
    assert ensure_first_key(session, settings).key == CHOSEN


def test_key_that_is_changed_in_the_environment_is_revoked_and_comes_back_when_it_is_chosen_again(
    session: Session, settings: Settings
) -> None:
    ensure_first_key(session, settings)
    second = create_key(session, tenant="default", name="second", scopes=["*"])
    for key in (CHOSEN, CHOSEN + "-again", CHOSEN):
        ensure_first_key(session, settings.model_copy(update={"api_key": key}))
        assert valid_keys(session) == {sha256(key.encode()).digest(), sha256(second.encode()).digest()}


def test_key_drawn_on_another_data_directory_revokes_none(session: Session, settings: Settings, tmp_path: Path) -> None:
    ensure_first_key(session, settings)
    ensure_first_key(session, settings.model_copy(update={"data_dir": tmp_path / "another"}))
    assert len(valid_keys(session)) == 2


def test_start_replaces_the_key_of_the_file_when_that_was_revoked(session: Session, settings: Settings) -> None:
    first = ensure_first_key(session, settings).key
    revoke_keys(session, [key_row(session, first).id])
    second = ensure_first_key(session, settings).key
    assert second != first and (settings.data_dir / "api-key").read_text() == f"{second}\n"
    assert valid_keys(session) == {sha256(second.encode()).digest()}


def valid_keys(session: Session) -> set[bytes]:
    """The digests of the keys that open."""
    return set(session.scalars(select(ApiKey.digest).where(ApiKey.revoked_at.is_(None))))


def test_short_key_is_refused_by_name_and_nothing_is_made(session: Session, settings: Settings) -> None:
    with pytest.raises(KeyTooShort, match="HEADRACE_API_KEY has 15 characters, a key has at least 16"):
        ensure_first_key(session, settings.model_copy(update={"api_key": "x" * 15}))
    (settings.data_dir / "api-key").write_text("short\n")
    with pytest.raises(KeyTooShort, match="api-key has 5 characters"):
        ensure_first_key(session, settings)
    assert session.scalar(select(func.count()).select_from(ApiKey)) == 0


def test_start_with_a_short_key_is_refused_in_one_line(settings: Settings) -> None:
    short, words = settings.model_copy(update={"api_key": "short"}), "HEADRACE_API_KEY has 5 characters"
    with Database(short) as database, pytest.raises(Refused, match=words):
        database.prepare()


@pytest.mark.parametrize(
    ("key", "hint"), [("short", ""), ("hr_test-key", "y"), ("0123456789abcdef", "ef"), ("x" * 46, "xxxx")]
)
def test_hint_shows_an_eighth_of_a_key_at_most(session: Session, key: str, hint: str) -> None:
    create_key(session, tenant="t", name="n", scopes=["*"], key=key)
    assert session.scalars(select(ApiKey.hint)).one() == hint
