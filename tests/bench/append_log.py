"""When each token was handed to Redis: a file that the worker of `tests/bench/paced_app.py` writes."""

import struct
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from db.stream import Append

NAME = "appends"  # in the worker's data directory
RECORD = struct.Struct("<d16sII")  # time.monotonic(), which all processes share; job; index of the first token; tokens


def write(path: Path, appends: Iterable[Append]) -> None:
    """Note that these appends leave now."""
    now = time.monotonic()
    with path.open("ab") as log:
        log.writelines(RECORD.pack(now, each.job_id.bytes, each.first_index, len(each.tokens)) for each in appends)


def read(path: Path) -> dict[UUID, dict[int, float]]:
    """When each token, by its job and its index, was sent for the first time."""
    times: dict[UUID, dict[int, float]] = {}
    for at, job_id, first_index, num_tokens in RECORD.iter_unpack(path.read_bytes()):
        of_job = times.setdefault(UUID(bytes=job_id), {})
        for index in range(first_index, first_index + num_tokens):
            of_job.setdefault(index, at)
    return times
