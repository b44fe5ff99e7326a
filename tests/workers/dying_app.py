"""The engine worker's app, made to die by `kill -9` at chosen tokens: `celery -A tests.workers.dying_app worker`.

A test condemns jobs (`tests/workers/condemned.py`): from then on their streams get no token beyond the chosen ones, no
end of theirs is committed, and the worker kills itself when every stream has come that far. So what it leaves behind is
what a kill at that moment leaves.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import redis

from db import stream
from db.session import make_redis
from db.settings import get_settings
from db.stream import Append, Appended
from tests.workers.condemned import condemned, pardon
from workers.app import app
from workers.held import HeldJob
from workers.journal import Journal
from workers.writer import Writer

__all__ = ["app"]

_append_many, _put, _note = stream.append_many, Writer.put, Journal.write
_redis = make_redis(get_settings())


def _append_many_and_die(client: redis.Redis, appends: Sequence[Append]) -> list[Appended]:
    limits = condemned(client)
    cut = [_cut(append, limits) for append in appends]
    _append_many(client, [append for append in cut if append.tokens])
    if limits and _are_reached(client, limits):
        pardon(client)
        os.kill(os.getpid(), signal.SIGKILL)
    return [Appended("ok", append.first_index + len(append.tokens)) for append in appends]


def _note_cut(self: Journal, appends: Mapping[HeldJob, Append]) -> None:
    """What dies with the worker is in its journal neither."""
    limits = condemned(_redis)
    cut = {held: _cut(append, limits) for held, append in appends.items()}
    _note(self, {held: append for held, append in cut.items() if append.tokens})


def _cut(append: Append, limits: Mapping[UUID, int]) -> Append:
    num_left = limits.get(append.job_id, append.first_index + len(append.tokens)) - append.first_index
    return replace(append, tokens=append.tokens[: max(0, num_left)])


def _are_reached(client: redis.Redis, limits: Mapping[UUID, int]) -> bool:
    standings = stream.standings(client, list(limits))
    return all(job_id in standings and standings[job_id].num_tokens == num for job_id, num in limits.items())


def _put_unless_condemned(self: Writer, held: HeldJob) -> None:
    if held.job_id not in condemned(_redis):
        _put(self, held)


stream.append_many = _append_many_and_die
Writer.put = _put_unless_condemned  # type: ignore[method-assign]
Journal.write = _note_cut  # type: ignore[method-assign]
