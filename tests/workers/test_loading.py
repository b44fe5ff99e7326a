"""What the settings make of the KV cache when a model is loaded."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from db.settings import Settings
from kernels.cpu.library import library
from tests.checkpoints import make_checkpoint
from workers.engine import build
from workers.engine.block_manager import BlockManager
from workers.engine.engine import Engine
from workers.loading import load
from workers.model_plan import LoadFailed, kv_cache_dtype


@pytest.fixture
def tiny(settings: Settings, tmp_path: Path) -> Settings:
    model = str(make_checkpoint(tmp_path / "tiny", "llama", head_dim=32))
    return settings.model_copy(update={"model": model, "kv_cache_tokens": 256, "max_model_len": 64})


def engine_of(settings: Settings, **changes: Any) -> Engine:
    changed = settings.model_copy(update=changes)
    return load(changed, on_card=lambda card: None, clock=time.time).engine


@pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
def test_by_default_our_kernels_compute_whatever_the_processor_has_and_pytorch_in_what_it_computes_well(
    tiny: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    odd_heads = str(make_checkpoint(tmp_path / "odd", "llama", head_dim=16))
    assert engine_of(tiny).runner.kv_cache.dtype == torch.bfloat16
    assert engine_of(tiny, model=odd_heads).runner.kv_cache.dtype == torch.float32


def test_the_kv_cache_has_the_dtype_of_the_weights_unless_int8_is_asked_for(tiny: Settings) -> None:
    plain, small = engine_of(tiny, dtype="bfloat16"), engine_of(tiny, dtype="bfloat16", kv_cache_dtype="int8")
    plain_cache, small_cache = plain.runner.kv_cache, small.runner.kv_cache
    assert (plain_cache.dtype, small_cache.dtype) == (torch.bfloat16, torch.int8)
    assert len(plain_cache) == len(small_cache) == 16  # as many tokens
    assert small_cache.nbytes * 64 == plain_cache.nbytes * 36


def test_an_int8_kv_cache_is_refused_on_a_gpu(tiny: Settings) -> None:
    asked = tiny.model_copy(update={"kv_cache_dtype": "int8"})
    with pytest.raises(LoadFailed, match="HEADRACE_KV_CACHE_DTYPE=int8 needs a CPU"):
        kv_cache_dtype(asked, torch.bfloat16, torch.device("cuda"))


@pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
def test_blocks_that_were_computed_otherwise_are_never_found(tiny: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[bytes] = []

    class RecordingBlockManager(BlockManager):
        def __init__(self, *args: Any, layout: bytes, **kwargs: Any) -> None:
            super().__init__(*args, layout=layout, **kwargs)
            layouts.append(layout)

    monkeypatch.setattr(build, "BlockManager", RecordingBlockManager)
    for changes in (
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "quantization": "int8"},
        {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
        {"dtype": "float32", "kv_cache_dtype": "int8"},
        {"dtype": "float32"},
    ):
        engine_of(tiny, **changes)
    assert len(set(layouts)) == 5
    engine_of(tiny, dtype="float32")
    assert layouts[-1] == layouts[-2]


def test_embeddings_are_pooled_as_the_settings_say(tiny: Settings) -> None:
    for pooling in ("mean", "last"):
        changed = tiny.model_copy(update={"embedding_pooling": pooling})
        assert load(changed, on_card=lambda card: None, clock=time.time).pooling == pooling
