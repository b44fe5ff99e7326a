"""The engine above a host tier and a disk: the same tokens, whatever went down and came up meanwhile."""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.fakes import (
    Clock,
    FakeModel,
    expected_samples,
    make_config,
    make_sequence,
    run_to_end,
    tokens_of,
)
from workers.engine.block_manager import BlockManager
from workers.engine.disk_tier import DiskTier
from workers.engine.engine import Engine
from workers.engine.host_tier import HostTier
from workers.engine.runner import ModelRunner
from workers.engine.sequence import Sequence


class World:
    """An engine of twelve blocks, twenty below it in host memory, and a directory below those."""

    def __init__(self, directory: Path, *, host_blocks: int = 20, is_overlapping: bool = False) -> None:
        self.config = make_config(num_blocks=12, host_blocks=host_blocks, is_overlapping=is_overlapping)
        self.disk = DiskTier(directory, max_bytes=2**20, layout=b"fake")
        self.runner = ModelRunner(FakeModel(), self.config, "cpu", torch.float32, disk=self.disk)
        self.blocks = BlockManager(12, 4, host=HostTier(host_blocks, disk=self.disk), layout=b"fake")
        self.engine = Engine(self.config, self.runner, blocks=self.blocks, clock=Clock())

    def run(self, sequences: list[Sequence]) -> None:
        """All at once to their ends, each with the tokens that it would have had alone."""
        config = self.config
        expected = {s.id: [sample.token_id for sample in expected_samples(s, config)] for s in sequences}
        for sequence in sequences:
            self.engine.add(sequence)
        assert tokens_of(run_to_end(self.engine)) == expected


def make_turns(num_turns: int) -> list[Sequence]:
    """Conversations of one kind that begin alike: three beginnings, in turn."""
    return [
        make_sequence(f"turn {i}", [*range(i % 3, i % 3 + 14), 3 * i % 40, i], arrival=i, max_tokens=4 + i % 5)
        for i in range(num_turns)
    ]


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_prefixes_that_went_down_come_up_with_the_same_tokens(tmp_path: Path, is_overlapping: bool) -> None:
    world = World(tmp_path, is_overlapping=is_overlapping)
    for sequence in make_turns(12):
        world.run([sequence])
    stats = world.blocks.stats
    assert stats.evictions and stats.offloaded_blocks
    assert stats.host_hit_tokens > 0
    world.disk.close()


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_sequences_that_are_swapped_out_give_the_same_tokens(tmp_path: Path, is_overlapping: bool) -> None:
    world = World(tmp_path, is_overlapping=is_overlapping)
    world.run([make_sequence("first", 4, max_tokens=20)])  # the step time is known now, and a copy takes none
    world.run([make_sequence(f"s{i}", 9, arrival=i, max_tokens=12) for i in range(6)])
    assert world.engine.scheduler.preemption.num_swaps > 0
    assert world.blocks.stats.host_hit_tokens > 0
    world.disk.close()


def test_a_restarted_engine_finds_on_disk_what_the_last_one_computed(tmp_path: Path) -> None:
    world = World(tmp_path, host_blocks=4)
    world.run(make_turns(1))
    for i in range(5):  # push it down
        world.run([make_sequence(f"s{i}", 16)])
    world.disk.close()
    restarted = World(tmp_path, host_blocks=4)
    assert restarted.disk.wait_until_idle(30)
    restarted.run(make_turns(1))
    assert restarted.blocks.stats.disk_hit_tokens == 12
    restarted.disk.close()
