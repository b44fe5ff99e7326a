"""Places at which the worker of `tests/workers/gated_app.py` stops while a test wants it; in Redis for both to see.

`loading` is where the model is loaded and the worker does not know yet; `step` is in every step, between schedule and
retire. The others are hops of a job: `popped` and not claimed, `claimed` and its stream not opened, `computed` and its
end not committed, `committed` and its stream not ended.
"""

from dataclasses import dataclass

import redis

from tests.workers.worker_process import wait_until

LOOK_SECONDS = 0.2  # how often who stands at a gate looks whether it is open


@dataclass(frozen=True)
class Gate:
    """One place in the worker of one model. Gates are open until a test closes them."""

    client: redis.Redis
    name: str  # as above
    model: str

    def close(self) -> None:
        """Stop who comes from now on, and count them."""
        self.client.delete(self._key("permits"), self._key("stops"))
        self.client.set(self._key("closed"), 1)

    def open(self) -> None:
        self.client.delete(self._key("closed"))

    def wait(self, *, since: int = 0) -> int:
        """Until the worker stands here for one time more than `since`; how often it has by then."""
        return int(wait_until(lambda: self.num_stops() > since and self.num_stops(), f"the worker at {self.name}"))

    def let(self) -> None:
        """Let the worker, which stands here, go on to its next stop here, and wait for it."""
        num_stops = self.num_stops()
        self.client.rpush(self._key("permits"), 1)
        self.wait(since=num_stops)

    def num_stops(self) -> int:
        """How often the worker has stood here since the gate was closed."""
        return int(self.client.get(self._key("stops")) or 0)

    def pass_through(self) -> None:
        """The worker is here."""
        if self.client.exists(self._key("closed")):
            self.client.incr(self._key("stops"))
        while self.client.exists(self._key("closed")):
            if self.client.blpop([self._key("permits")], timeout=LOOK_SECONDS) is not None:
                return

    def _key(self, what: str) -> str:
        return f"gate:{self.model}:{self.name}:{what}"


@dataclass(frozen=True)
class Commands:
    """How many commands the engine loop of one model's worker was given: an event that a test may wait for."""

    client: redis.Redis
    model: str

    def num(self) -> int:
        return int(self.client.get(self._key()) or 0)

    def wait(self, *, since: int) -> None:
        """Until there is one more than `since`."""
        wait_until(lambda: self.num() > since, "a command to the engine loop")

    def count(self) -> None:
        """One was given."""
        self.client.incr(self._key())

    def _key(self) -> str:
        return f"gate:{self.model}:commands"
