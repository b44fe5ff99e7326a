"""The health of webhook endpoints: since when one fails, and when it is disabled for it.

A disabled endpoint gets no deliveries; what is on its way to it then ends unsent when it is due.
"""

from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

FAILING_DAYS = 5  # of failed attempts and no other, before an endpoint is disabled
GONE_REASON = "it answered 410, which says that it wants no more events"
FAILING_REASON = f"every attempt has failed for {FAILING_DAYS} days"

# Only the first failure after a success, and the last, write; so does the first success. Per-job URLs have no health.
WORKS = text("""
    UPDATE webhook_endpoints SET failing_since = NULL WHERE id = :endpoint_id AND failing_since IS NOT NULL
""")
FAILS = text(f"""
    UPDATE webhook_endpoints SET
        failing_since = coalesce(failing_since, clock_timestamp()),
        disabled_at = CASE
            WHEN :is_gone OR failing_since <= clock_timestamp() - interval '{FAILING_DAYS} days' THEN clock_timestamp()
        END,
        disabled_reason = CASE
            WHEN :is_gone THEN '{GONE_REASON}'
            WHEN failing_since <= clock_timestamp() - interval '{FAILING_DAYS} days' THEN '{FAILING_REASON}'
        END
    WHERE id = :endpoint_id AND url IS NOT NULL AND disabled_at IS NULL
      AND (failing_since IS NULL OR :is_gone OR failing_since <= clock_timestamp() - interval '{FAILING_DAYS} days')
    RETURNING disabled_reason
""")


def note_success(session: Session, endpoint_id: UUID) -> None:
    """The endpoint took an event."""
    session.execute(WORKS, {"endpoint_id": endpoint_id})


def note_failure(session: Session, endpoint_id: UUID, *, is_gone: bool) -> str | None:
    """An attempt failed; with `is_gone` by a 410. Returns why the endpoint is disabled, when this disabled it."""
    reason: str | None = session.scalar(FAILS, {"endpoint_id": endpoint_id, "is_gone": is_gone})
    return reason
