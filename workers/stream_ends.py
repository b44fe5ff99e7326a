"""Closes the streams of ended jobs that are still open: Redis was away at the end, and who waited to say so was killed.

Without this such a stream, which readers take for a running job's until they look at the row, would stay for a day.
"""

from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from db import open_streams, stream

NUM_KEYS = 1000  # looked at in one round: a millisecond's work for each hundred


class StreamEnds:
    """Part of the sweep, and used by its thread only. Each round goes on where the one before stopped."""

    def __init__(self, engine: Engine, redis: Redis, *, num_keys: int = NUM_KEYS) -> None:
        self._engine = engine
        self._redis = redis
        self._num_keys = num_keys
        self._cursor = 0

    def run(self) -> int:
        """Close those among the next keys; how many. One whose worker is just about to do it is closed but once."""
        piece = open_streams.walk(self._redis, self._cursor, self._num_keys)
        self._cursor = piece.cursor  # now: what fails here waits for the next walk, and the rest does not wait for it
        if not piece.job_ids:
            return 0
        with Session(self._engine) as session:
            num_tokens = open_streams.ended(session, piece.job_ids)
        stream.end_many(self._redis, num_tokens)
        return len(num_tokens)
