"""Who finds what was computed before, from the settings down to the cache: tenants, and models whose weights change."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from db.settings import Settings
from tests.checkpoints import make_checkpoint
from tests.workers.engine.known_disk_tier import KnownDiskTier
from tests.workers.held_jobs import make_held
from tests.workers.loop_world import PATIENCE_SECONDS, Ends
from workers.engine import build
from workers.loading import load
from workers.loop import EngineLoop

PROMPT = [5 + i for i in range(40)]  # two full blocks of 16, and a part of one
NUM_SHAREABLE = 32


@pytest.fixture
def tiny(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"model": str(make_checkpoint(tmp_path / "tiny")), "kv_cache_tokens": 1024})


@contextmanager
def running(settings: Settings) -> Iterator["Worker"]:
    """The engine loop of a worker with these settings, without what takes its jobs in and out."""
    ends, failures = Ends(), list[BaseException]()
    loop = EngineLoop(
        lambda: load(settings, on_card=lambda card: None, clock=time.time),
        streamer=ends,  # type: ignore[arg-type]
        writer=ends,  # type: ignore[arg-type]
        on_ready=lambda: None,
        on_failure=failures.append,
    )
    loop.start()
    yield Worker(loop, ends)
    loop.stop()
    loop.join(PATIENCE_SECONDS)
    assert not failures


class Worker:
    def __init__(self, loop: EngineLoop, ends: Ends) -> None:
        self.loop = loop
        self.ends = ends

    def num_cached(self, prompt: list[int], **changes: Any) -> int:
        """Run a job to its end: how many tokens of its prompt were found."""
        held = make_held(prompt_token_ids=prompt, max_tokens=2, **changes)
        self.loop.start_job(held)
        assert self.ends.wait(held) == ["succeeded"]
        return held.num_cached_tokens


def test_a_tenant_finds_its_own_prompts_and_no_others(tiny: Settings) -> None:
    with running(tiny) as worker:
        assert worker.num_cached(PROMPT, tenant="one") == 0
        assert worker.num_cached(PROMPT, tenant="two") == 0
        assert worker.num_cached(PROMPT, tenant="one") == NUM_SHAREABLE


def test_all_tenants_find_each_others_prompts_where_the_settings_say_so(tiny: Settings) -> None:
    with running(tiny.model_copy(update={"prefix_cache_scope": "all"})) as worker:
        assert worker.num_cached(PROMPT, tenant="one") == 0
        assert worker.num_cached(PROMPT, tenant="two") == NUM_SHAREABLE


def leave_on_disk(settings: Settings) -> None:
    """Have a worker compute the prompt, and enough others to drive it down to the disk."""
    with running(settings) as worker:
        for i in range(8):
            worker.num_cached([*PROMPT] if i == 0 else [200 + i] * len(PROMPT))


@pytest.mark.parametrize("is_retrained", [False, True])
def test_after_a_restart_with_other_weights_nothing_is_found_that_the_old_ones_computed(
    tiny: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_retrained: bool
) -> None:
    """Also where the new files are as long as the old, and as old: builds that are to repeat set every time alike."""
    tiers = {"kv_cache_tokens": 64, "max_model_len": 64, "host_cache_gb": 4e-5, "disk_cache_gb": 0.01}
    settings = tiny.model_copy(update=tiers)
    monkeypatch.setattr(build, "DiskTier", KnownDiskTier)
    leave_on_disk(settings)
    if is_retrained:
        weights = tmp_path / "tiny" / "model.safetensors"
        before = weights.stat()
        make_checkpoint(tmp_path / "retrained", seed=1)
        (tmp_path / "retrained" / "model.safetensors").replace(weights)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert weights.stat().st_size == before.st_size
    with running(settings) as worker:
        assert worker.num_cached(PROMPT) == (0 if is_retrained else NUM_SHAREABLE)
