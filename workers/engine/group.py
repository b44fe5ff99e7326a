"""Several outputs of one prompt: admitted, preempted, aborted and resumed as one."""

from collections.abc import Sequence as ListLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.engine.sequence import Sequence

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / phi: the increment of SplitMix64
MASK = 2**64 - 1


class SequenceGroup:
    """The choices of one job. One of them, the leader, computes the prompt; then the others fork from its blocks.

    Until that fork only the leader is in the scheduler's lists, with a seat kept for each of the others.
    """

    def __init__(self, id: str, sequences: ListLike["Sequence"]) -> None:
        self.id = id
        self.living = list(sequences)  # written by the scheduler only; the first is the leader
        self.is_forked = False  # written by the scheduler only
        for sequence in sequences:
            sequence.group = self

    @property
    def leader(self) -> "Sequence":
        return self.living[0]


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice, signed 64-bit; the first has the job's own, so that one choice is what a plain job gives.

    SplitMix64's output function (Steele, Lea and Flood, 2014): neighbouring choices have unrelated randomness.
    """
    if choice == 0:
        return seed
    z = (seed + choice * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z
