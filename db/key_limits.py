"""What a key may do: submits and tokens in a minute, which Redis counts, and jobs at once, which are counted here."""

from dataclasses import dataclass, fields
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from db.models import ApiKey
from db.settings import Settings


@dataclass(frozen=True)
class KeyLimits:
    """Of one key. 0 is any number. None is the settings' default and, where those say nothing, any number too."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_jobs: int | None = None  # queued and running, lines of batches aside

    @property
    def has_rates(self) -> bool:
        """Whether anything is to be counted by the minute."""
        return bool(self.requests_per_minute or self.tokens_per_minute)


NAMES = tuple(field.name for field in fields(KeyLimits))


def limits_of(key: ApiKey, settings: Settings) -> KeyLimits:
    """What the key may do: as its row says, and where that says nothing as the settings do."""
    own = {name: getattr(key, name) for name in NAMES}
    return KeyLimits(**{name: getattr(settings, name) if value is None else value for name, value in own.items()})


# As text, because every submit of such a key asks it. Each part is a look into one partial index, and ends at
# `most`; lines of batches are passed over there, as many as their windows let in.
UNFINISHED = text("""
    SELECT count(*) FROM (
        (SELECT 1 FROM jobs
        WHERE key_id = :key_id AND batch_id IS NULL AND status = 'queued' AND ready_at IS NOT NULL LIMIT :most)
        UNION ALL
        (SELECT 1 FROM jobs
        WHERE key_id = :key_id AND batch_id IS NULL AND status = 'queued' AND ready_at IS NULL LIMIT :most)
        UNION ALL
        (SELECT 1 FROM jobs
        WHERE key_id = :key_id AND batch_id IS NULL AND status = 'running' LIMIT :most)
    ) AS unfinished
""")


async def num_unfinished(session: AsyncSession, key_id: UUID, *, most: int) -> int:
    """How many of the key's jobs have not ended, lines of batches aside. Of `most` or more it only tells so much."""
    return int(await session.scalar(UNFINISHED, {"key_id": key_id, "most": most}) or 0)


async def lock(session: AsyncSession, key_id: UUID) -> None:
    """Until the transaction ends, nobody else has the key's lock: what was counted under it stays so."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"headrace key {key_id}", 0))))
