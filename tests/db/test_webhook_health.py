"""When an endpoint counts as failing, and when that disables it."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import func
from sqlalchemy.orm import Session

from db import webhook_health
from db.models import WebhookEndpoint
from tests.db.rows import add_endpoint, now


def add(session: Session, *, failing_days: float | None = None) -> WebhookEndpoint:
    since = None if failing_days is None else now(session) - timedelta(days=failing_days)
    return add_endpoint(session, url="https://a.test/", failing_since=since)


def fail(session: Session, endpoint_id: UUID, *, is_gone: bool = False) -> str | None:
    reason = webhook_health.note_failure(session, endpoint_id, is_gone=is_gone)
    session.expire_all()
    return reason


def test_endpoint_fails_since_its_first_failure_and_works_since_its_first_success(session: Session) -> None:
    endpoint = add(session)
    assert fail(session, endpoint.id) is None
    since = endpoint.failing_since
    assert since is not None and endpoint.disabled_at is None
    fail(session, endpoint.id)
    assert endpoint.failing_since == since
    webhook_health.note_success(session, endpoint.id)
    session.expire_all()
    assert endpoint.failing_since is None


def test_endpoint_that_failed_for_less_than_five_days_stays_enabled(session: Session) -> None:
    endpoint = add(session, failing_days=4.99)
    assert fail(session, endpoint.id) is None and endpoint.disabled_at is None


def test_endpoint_that_failed_for_five_days_is_disabled_with_the_reason(session: Session) -> None:
    endpoint = add(session, failing_days=5.01)
    assert fail(session, endpoint.id) == "every attempt has failed for 5 days"
    assert endpoint.disabled_at is not None
    assert endpoint.disabled_reason == "every attempt has failed for 5 days"
    disabled_at = endpoint.disabled_at
    assert fail(session, endpoint.id, is_gone=True) is None
    assert endpoint.disabled_at == disabled_at


def test_endpoint_that_says_it_is_gone_is_disabled_at_once(session: Session) -> None:
    endpoint = add(session)
    reason = fail(session, endpoint.id, is_gone=True)
    assert reason is not None and "410" in reason
    assert endpoint.disabled_at is not None and endpoint.failing_since is not None


def test_secret_of_the_jobs_own_urls_is_never_disabled(session: Session) -> None:
    signer = add_endpoint(session)
    assert fail(session, signer.id, is_gone=True) is None
    assert (signer.failing_since, signer.disabled_at) == (None, None)


def test_success_of_an_attempt_under_way_does_not_enable_an_endpoint(session: Session) -> None:
    endpoint = add_endpoint(session, url="https://a.test/", disabled_at=func.now(), disabled_reason="its owner did")
    webhook_health.note_success(session, endpoint.id)
    session.expire_all()
    assert endpoint.disabled_at is not None
