"""How many blocks fit, and what follows from it."""

from pathlib import Path

import pytest
import torch

from db.settings import Settings
from tests.checkpoints import make_checkpoint
from tests.workers.engine.fakes import FakeShape
from workers.capacity import NoRoom, block_bytes, blocks_that_fit, resolve, warm_up
from workers.models.loader import load_model

GIB = 2**30


def test_blocks_fill_the_share_that_a_worst_step_leaves() -> None:
    # 80 GB, of which 8 are to stay free; 40 are free after the step: 32 for blocks.
    assert blocks_that_fit(40 * GIB, 80 * GIB, share=0.9, bytes_per_block=GIB) == 32
    with pytest.raises(NoRoom, match=r"5\.0 of 80\.0 GB are free .* HEADRACE_GPU_MEMORY_SHARE is 0\.9"):
        blocks_that_fit(5 * GIB, 80 * GIB, share=0.9, bytes_per_block=GIB)


def test_an_int8_block_takes_little_more_than_half_of_a_bfloat16_one() -> None:
    shape = FakeShape(num_layers=2, num_kv_heads=3, head_dim=64)
    assert block_bytes(shape, 16, torch.bfloat16) == 2 * 2 * 16 * 3 * 64 * 2
    assert block_bytes(shape, 16, torch.int8) == 2 * 2 * 16 * 3 * (64 + 4)


def test_what_a_worker_holds_is_resolved_once(settings: Settings) -> None:
    tight = settings.model_copy(update={"max_num_seqs": 64, "token_budget": 32, "host_cache_gb": 0.5})
    found = resolve(tight, longest=4096, block_size=16, num_blocks=100, block_bytes=2**20)
    assert (found.max_num_seqs, found.token_budget, found.max_model_len) == (64, 64, 1600)
    assert found.host_blocks == 512
    asked = tight.model_copy(update={"max_model_len": 1000})
    assert resolve(asked, longest=4096, block_size=16, num_blocks=100, block_bytes=2**20).max_model_len == 1000
    assert resolve(asked, longest=500, block_size=16, num_blocks=100, block_bytes=2**20).max_model_len == 500


def test_what_was_resolved_is_logged_once(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    asked = settings.model_copy(update={"max_num_seqs": 64, "token_budget": 32, "host_cache_gb": 0.5})
    with caplog.at_level("INFO"):
        resolve(asked, longest=4096, block_size=16, num_blocks=100, block_bytes=2**20)
    [record] = [record for record in caplog.records if record.message == "capacity"]
    expected = {
        "max_num_seqs": 64,
        "token_budget": 64,
        "max_model_len": 1600,
        "block_size": 16,
        "num_blocks": 100,
        "host_blocks": 512,
        "kv_cache_gb": 0.098,  # 100 MB
        "kv_tokens": 1600,
    }
    assert {name: vars(record)[name] for name in expected} == expected


def test_the_worst_step_is_computed_before_memory_is_measured(settings: Settings, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m", "llama")
    model = load_model(path, cache_dir=tmp_path / "cache", dtype=torch.float32, device="cpu")
    rows: list[int] = []
    forward = model.forward
    model.forward = lambda ids, *args: rows.append(len(ids)) or forward(ids, *args)  # type: ignore[method-assign,func-returns-value]
    small = settings.model_copy(update={"token_budget": 40, "max_num_seqs": 8})
    size = block_bytes(model.config, 16, torch.float32)
    free, total = warm_up(
        model,
        small,
        block_size=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
        free_memory=lambda: (1000 if rows == [40] else 0, 5000),
    )
    assert (free, total) == (1000 + 3 * size, 5000)  # what the step's own blocks took is free again
