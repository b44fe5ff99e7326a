"""Engines whose runner has a device beside the host, in one line, and what comes out of them."""

from typing import Any

import pytest
import torch

from tests.workers.engine.fakes import Clock, FakeModel, expected_samples, make_config, make_sequence, run_to_end
from tests.workers.engine.host_accelerator import HostAccelerator
from workers.engine.build import build_engine
from workers.engine.engine import Engine
from workers.engine.graph_runner import GraphRunner
from workers.engine.sequence import Sequence

OVERLAP = pytest.mark.parametrize("is_overlapping", [False, True])


def make_engine(
    *, model: FakeModel | None = None, accelerator: HostAccelerator | None = None, has_graphs: bool = True, **sizes: Any
) -> Engine:
    """Blocks of 8, for the rows of a graph that is captured need slots of their own."""
    return build_engine(
        make_config(**({"block_size": 8} | sizes)),
        model or FakeModel(),
        device="cpu",
        dtype=torch.float32,
        accelerator=accelerator or HostAccelerator(),
        has_graphs=has_graphs,
        clock=Clock(),
    )


def runner_of(engine: Engine) -> GraphRunner:
    assert isinstance(engine.runner, GraphRunner)
    return engine.runner


def num_replays(engine: Engine) -> int:
    graphs = runner_of(engine).graphs
    assert graphs is not None
    return graphs.num_replays


def make_sequences(**params: Any) -> list[Sequence]:
    """Greedy, drawn, and drawn with restrictions, in turn; of every length around a block."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.8},
        {"temperature": 1.1, "top_p": 0.7},
        {"temperature": 0.9, "top_k": 4, "min_p": 0.05},
    )
    return [
        make_sequence(f"s{i}", num, arrival=i, seed=i, max_tokens=14 + i % 3, **(kinds[i % 4] | params))
        for i, num in enumerate((1, 7, 8, 9, 20, 3, 15, 4, 11, 2))
    ]


def tokens(engine: Engine, sequences: list[Sequence]) -> dict[str, list[int]]:
    for sequence in sequences:
        engine.add(sequence)
    outputs = run_to_end(engine)
    engine.close()
    assert not any(output.error for each in outputs.values() for output in each)
    return {id: [output.token_id for output in each] for id, each in outputs.items()}


def expected_tokens(engine: Engine, sequences: list[Sequence]) -> dict[str, list[int]]:
    return {each.id: [sample.token_id for sample in expected_samples(each, engine.config)] for each in sequences}
