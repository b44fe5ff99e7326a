"""What an attempt's reply means for its delivery."""

from datetime import UTC, datetime

import pytest

from workers.delivery import SCHEDULE, Verdict, judge
from workers.webhooks import Reply


def reply(status_code: int | None, *, retry_after: float | None = None, is_refused: bool = False) -> Reply:
    is_taken = status_code is not None and 200 <= status_code < 300
    return Reply(
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=5,
        status_code=status_code,
        error=None if is_taken else "no",
        excerpt=None,
        retry_after_seconds=retry_after,
        is_refused=is_refused,
    )


@pytest.mark.parametrize("status_code", [200, 201, 204, 299])
def test_any_2xx_delivers(status_code: int) -> None:
    assert judge(reply(status_code), number=1) == Verdict("delivered")


@pytest.mark.parametrize("status_code", [None, 301, 302, 400, 404, 429, 500, 503])
def test_every_other_answer_and_none_is_tried_again(status_code: int | None) -> None:
    assert judge(reply(status_code), number=1, jitter=0) == Verdict("retry", 5.0)


def test_nine_retries_spread_over_three_days_and_the_tenth_failure_is_the_last() -> None:
    verdicts = [judge(reply(500), number=number, jitter=0) for number in range(1, 11)]
    assert [verdict.retry_in_seconds for verdict in verdicts[:9]] == list(SCHEDULE)
    assert verdicts[9] == Verdict("failed")
    assert 3 * 86400 < sum(SCHEDULE) < 4 * 86400


def test_jitter_moves_a_delay_by_a_tenth_at_most() -> None:
    delays = [judge(reply(500), number=2).retry_in_seconds or 0 for _ in range(200)]
    assert min(delays) >= 270 and max(delays) <= 330
    assert len(set(delays)) > 1


def test_410_ends_the_delivery() -> None:
    assert judge(reply(410), number=1) == Verdict("failed", is_gone=True)


def test_refused_url_ends_the_delivery() -> None:
    assert judge(reply(None, is_refused=True), number=1) == Verdict("failed")


@pytest.mark.parametrize("status_code", [429, 502, 503, 504])
def test_retry_after_is_honoured_between_the_schedule_and_a_day(status_code: int) -> None:
    assert judge(reply(status_code, retry_after=120), number=1, jitter=0).retry_in_seconds == 120
    assert judge(reply(status_code, retry_after=1), number=2, jitter=0).retry_in_seconds == 300
    assert judge(reply(status_code, retry_after=1e9), number=1, jitter=0).retry_in_seconds == 86400


def test_retry_after_of_another_answer_does_not_count() -> None:
    assert judge(reply(500, retry_after=120), number=1, jitter=0).retry_in_seconds == 5


def test_test_is_never_repeated() -> None:
    assert judge(reply(500), number=1, is_test=True) == Verdict("failed")
    assert judge(reply(204), number=1, is_test=True) == Verdict("delivered")
