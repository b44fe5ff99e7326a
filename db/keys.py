"""API keys: 256 random bits, known here by their SHA-256 alone. A tenant's first key comes with its webhook secret."""

import hashlib
import os
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from db.ids import new_id
from db.key_limits import KeyLimits, limits_of
from db.models import ApiKey, WebhookEndpoint
from db.scopes import Scope
from db.settings import Settings
from db.webhook_secret import new_secret

FIRST_TENANT = "default"
FIRST_NAME = "first"
PREFIX = "hr_"
MIN_KEY_CHARS = 16  # of a key that its owner chose
MAX_HINT_CHARS = 4
NO_LIMITS = KeyLimits()  # of its own: those of the settings hold


class KeyTooShort(Exception):
    """The first key, as its owner chose it, is one that others could guess; the message says where it stands."""


class NoSuchKey(Exception):
    """There is no key with this id."""

    def __init__(self, key_id: UUID) -> None:
        super().__init__(key_id)
        self.key_id = key_id


@dataclass(frozen=True)
class KnownKey:
    """A key as every request asks for it: what it may do, and how much of it."""

    id: UUID
    tenant: str
    scopes: frozenset[str]
    limits: KeyLimits  # that hold: its own, or the settings'

    @classmethod
    def of(cls, row: ApiKey, settings: Settings) -> Self:
        """The key of this row."""
        return cls(row.id, row.tenant, frozenset(row.scopes), limits_of(row, settings))


@dataclass(frozen=True)
class FirstKey:
    """What the first start makes, and every later start finds in the data directory."""

    key: str
    webhook_secret: str


def create_key(
    session: Session,
    *,
    tenant: str,
    name: str,
    scopes: Sequence[str],
    key: str | None = None,
    limits: KeyLimits = NO_LIMITS,
) -> str:
    """Insert a key, drawn at random unless given, and return it: it is not kept. One that exists stays as it is."""
    key = key or PREFIX + secrets.token_urlsafe(32)
    row = {"id": new_id(), "tenant": tenant, "name": name, "digest": _digest(key), "hint": _hint(key)}
    insertion = insert(ApiKey).values(row | {"scopes": [str(scope) for scope in scopes]} | asdict(limits))
    session.execute(insertion.on_conflict_do_nothing(index_elements=["digest"]))
    default_secret(session, tenant)
    return key


def key_row(session: Session, key: str) -> ApiKey:
    """The row of a key that was created, revoked or not."""
    return session.scalars(select(ApiKey).where(ApiKey.digest == _digest(key))).one()


def list_keys(session: Session, *, tenant: str | None, with_revoked: bool) -> list[ApiKey]:
    """The keys of a tenant, or of all for None, the oldest first."""
    statement = select(ApiKey).order_by(ApiKey.id)
    if tenant is not None:
        statement = statement.where(ApiKey.tenant == tenant)
    if not with_revoked:
        statement = statement.where(ApiKey.revoked_at.is_(None))
    return list(session.scalars(statement))


def revoke_keys(session: Session, key_ids: Collection[UUID]) -> list[ApiKey]:
    """Revoke the keys, which is for good, and return them; one that was revoked stays as it is. Raises NoSuchKey."""
    standing = update(ApiKey).where(ApiKey.id.in_(key_ids), ApiKey.revoked_at.is_(None))
    session.execute(standing.values(revoked_at=func.clock_timestamp()))
    rows = {row.id: row for row in session.scalars(select(ApiKey).where(ApiKey.id.in_(key_ids)))}
    for key_id in key_ids:
        if key_id not in rows:
            raise NoSuchKey(key_id)
    return [rows[key_id] for key_id in dict.fromkeys(key_ids)]


async def find_key(session: AsyncSession, key: str) -> ApiKey | None:
    """The row of a key that is not revoked. What is compared are digests, so the time taken tells nothing of a key."""
    statement = select(ApiKey).where(ApiKey.digest == _digest(key), ApiKey.revoked_at.is_(None))
    row: ApiKey | None = await session.scalar(statement)
    return row


def default_secret(session: Session, tenant: str, secret: str | None = None) -> str:
    """The secret that signs what goes to the `webhook_url` of the tenant's jobs; made at the first call."""
    row = {
        "id": new_id(),
        "tenant": tenant,
        "name": "job webhooks",
        "url": None,
        "secret": secret or new_secret(),
        "event_types": [],  # all
    }
    session.execute(
        insert(WebhookEndpoint)
        .values(row)
        .on_conflict_do_nothing(index_elements=["tenant"], index_where=WebhookEndpoint.url.is_(None))
    )
    statement = select(WebhookEndpoint.secret).where(WebhookEndpoint.tenant == tenant, WebhookEndpoint.url.is_(None))
    return session.execute(statement).scalar_one()


def ensure_first_key(session: Session, settings: Settings) -> FirstKey:
    """The first tenant's key and webhook secret, made and written to the data directory (mode 0600) on the first start.

    `HEADRACE_API_KEY` wins over the file, and revokes the first key that there was before. A database that is new finds
    both as the files have them, and a key that was revoked is replaced in its file. Raises KeyTooShort.
    """
    key_file, secret_file = settings.data_dir / "api-key", settings.data_dir / "webhook-secret"
    key = settings.api_key or _read(key_file)
    if key is not None and len(key) < MIN_KEY_CHARS:
        source = "HEADRACE_API_KEY" if settings.api_key else str(key_file)
        raise KeyTooShort(
            f"{source} has {len(key)} characters, a key has at least {MIN_KEY_CHARS}; leave it out to have one drawn"
        )
    secret = default_secret(session, FIRST_TENANT, _read(secret_file))
    key = _create_first(session, key)
    if not settings.api_key and key_row(session, key).revoked_at is not None:
        key = _create_first(session, None)  # the one of the file was revoked, and a start leaves one that opens
    if settings.api_key:
        _make_only_first(session, key)
    _write(key_file, key)
    _write(secret_file, secret)
    return FirstKey(key, secret)


def _create_first(session: Session, key: str | None) -> str:
    return create_key(session, tenant=FIRST_TENANT, name=FIRST_NAME, scopes=[Scope.ALL], key=key)


def _make_only_first(session: Session, key: str) -> None:
    """Revoke the other first keys. The chosen one is valid, also where it was replaced before."""
    first = update(ApiKey).where(ApiKey.tenant == FIRST_TENANT, ApiKey.name == FIRST_NAME)
    session.execute(first.where(ApiKey.digest == _digest(key)).values(revoked_at=None))
    others = first.where(ApiKey.digest != _digest(key), ApiKey.revoked_at.is_(None))
    session.execute(others.values(revoked_at=func.clock_timestamp()))


def _hint(key: str) -> str:
    """The key's last characters, an eighth of it at most."""
    return key[len(key) - min(MAX_HINT_CHARS, len(key) // 8) :]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _read(path: Path) -> str | None:
    return path.read_text().strip() or None if path.exists() else None


def _write(path: Path, secret: str) -> None:
    """Replace the file as a whole, readable by its owner alone."""
    if _read(path) == secret:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
    unfinished.rename(path)
