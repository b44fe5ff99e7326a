"""Removes what killed clients of Celery's control commands left in Redis: health checks past their time limit do."""

from redis import Redis

from db import control_replies

NUM_KEYS = 1000  # looked at in one round: a millisecond's work for each hundred
BINDING_SECONDS = 3600.0  # what kombu, too, allows between two signs of life; commands take seconds


class ControlReplies:
    """Part of the sweep, and used by its thread only."""

    def __init__(self, redis: Redis, *, num_keys: int = NUM_KEYS) -> None:
        self._redis = redis
        self._num_keys = num_keys
        self._cursor = 0  # where the round before stopped
        self._seen_since: dict[bytes, float] = {}  # bindings that every round since then has seen; Unix seconds

    def run(self, now: float) -> None:
        """Let lists of replies among the next keys expire, and remove bindings that were there all the time.

        A client makes its binding for each command and removes it after: a live one is not there at every look.
        """
        self._cursor = control_replies.expire(self._redis, self._cursor, self._num_keys)
        bindings = control_replies.bindings(self._redis)
        self._seen_since = {binding: self._seen_since.get(binding, now) for binding in bindings}
        left = [binding for binding, since in self._seen_since.items() if now - since >= BINDING_SECONDS]
        if left:
            control_replies.unbind(self._redis, left)
