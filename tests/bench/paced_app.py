"""The engine worker's app around a model that takes a large one's time and computes nothing.

It also notes when each token was handed to Redis. `celery -A tests.bench.paced_app worker`
"""

import time
from collections.abc import Sequence

import redis
import torch

from db import stream
from db.settings import get_settings
from db.stream import Append, Appended
from kernels import AttentionBatch
from tests.bench import append_log
from workers.app import app
from workers.models.decoder import Decoder

__all__ = ["app"]

STEP_SECONDS = 1 / 30
TOKEN_ID = 80

_append_many = stream.append_many
_log_path = get_settings().data_dir / append_log.NAME
_last_forward_at = 0.0


def _append_many_and_note(client: redis.Redis, appends: Sequence[Append]) -> list[Appended]:
    append_log.write(_log_path, appends)
    return _append_many(client, appends)


def _forward(
    self: Decoder,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: AttentionBatch,
    logits_rows: torch.Tensor,
) -> torch.Tensor:
    global _last_forward_at
    time.sleep(max(0.0, _last_forward_at + STEP_SECONDS - time.monotonic()))
    _last_forward_at = time.monotonic()
    logits = torch.zeros(len(logits_rows), self.config.vocab_size)  # [num_rows, vocab_size]
    logits[:, TOKEN_ID] = 1.0
    return logits


stream.append_many = _append_many_and_note
Decoder.forward = _forward  # type: ignore[method-assign]
