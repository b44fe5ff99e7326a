"""How long, and how often, the client tries again: by a clock of the test's own."""

import socket
from types import SimpleNamespace

import pytest

from api.client import Headrace
from api.client.connection import Retry
from api.client.errors import HeadraceError, ServerUnreachable


class Clock:
    """Time passes where one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("api.client.connection.time", clock)
    return clock


def make_retry(patience_seconds: float) -> Retry:
    return Retry(SimpleNamespace(patience_seconds=patience_seconds))


def away(retry_after_seconds: float = 0.0) -> HeadraceError:
    error = ServerUnreachable("Away.")
    error.retry_after_seconds = retry_after_seconds
    return error


def test_pauses_grow_up_to_a_bound_until_patience_runs_out(clock: Clock) -> None:
    retry = make_retry(60.0)
    with pytest.raises(ServerUnreachable):
        while True:
            retry.pause_or_raise(away())
    assert 50 < clock.now <= 60
    assert clock.pauses[0] < 0.2 and all(pause < 5 for pause in clock.pauses) and clock.pauses[-1] > 3


def test_patience_begins_with_the_first_failure_and_anew_after_a_success(clock: Clock) -> None:
    retry = make_retry(10.0)
    clock.now = 3600.0  # the stream was there for an hour
    retry.pause_or_raise(away())
    assert clock.pauses[0] < 0.2
    clock.now += 9.0
    retry.reset()
    clock.now += 9.0
    retry.pause_or_raise(away())
    assert clock.pauses[1] < 0.2


def test_a_server_that_says_when_is_not_asked_before(clock: Clock) -> None:
    retry = make_retry(60.0)
    retry.pause_or_raise(away(retry_after_seconds=7))
    assert 7 <= clock.now < 10


def test_a_server_that_says_when_patience_will_be_over_is_not_waited_for(clock: Clock) -> None:
    with pytest.raises(ServerUnreachable):
        make_retry(60.0).pause_or_raise(away(retry_after_seconds=61))
    assert clock.pauses == []


def test_a_server_that_never_answered_is_given_up_soon(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Headrace(url, "hr_key", first_contact_seconds=5.0) as headrace, pytest.raises(ServerUnreachable):
        headrace.submit("the mill", model="tiny")
    assert 1 < clock.now <= 5


def test_a_long_pause_is_told_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    retry = make_retry(60.0)
    for _ in range(8):
        retry.pause_or_raise(away())
    assert caplog.messages == ["Away. Trying again."]
