"""Steps of one token a row, captured for some numbers of rows: replayed at once instead of launched one by one."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from workers.engine.accelerator import Accelerator, Work

SMALL_SIZES = (1, 2, 4, 8)
STEP = 8  # between larger ones
MAX_ROWS = 512  # with more a step takes longer than its launches do


@dataclass(frozen=True)
class DecodeRows:
    """What the rows of such a step compute, a list or an int64 tensor of each: [num_rows]."""

    token_ids: list[int]  # a negative one, -1 - slot, is the last that was sampled in that slot
    positions: list[int]
    slot_mapping: list[int]  # where K and V go
    context_lens: list[int]
    slots: list[int]  # of the sequences

    def lists(self) -> tuple[list[int], ...]:
        return self.token_ids, self.positions, self.slot_mapping, self.context_lens, self.slots


class Padding:
    """Rows that are no sequence's. Each computes in the dummy block, behind those before it, and harms nobody."""

    def __init__(self, block_id: int, block_size: int, slot: int) -> None:
        self._block_id, self._block_size, self._slot = block_id, block_size, slot

    def rows(self, num: int) -> DecodeRows:
        offsets = [i % self._block_size for i in range(num)]
        first = self._block_id * self._block_size
        return DecodeRows(
            token_ids=[0] * num,
            positions=offsets,
            slot_mapping=[first + offset for offset in offsets],
            context_lens=[offset + 1 for offset in offsets],
            slots=[self._slot] * num,
        )


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, 16, 24 and so on: numbers of rows up to that of the seats, or MAX_ROWS."""
    largest = min(max_num_seqs, MAX_ROWS)
    sizes = [*SMALL_SIZES, *range(SMALL_SIZES[-1] + STEP, largest + STEP, STEP)]
    return sorted({min(size, largest) for size in sizes})


class DecodeGraphs:
    """One graph for each size, each with the tensor that it reads its rows from. All write to the same logits."""

    def __init__(
        self,
        accelerator: Accelerator,
        compute: Callable[[torch.Tensor], torch.Tensor],
        padding: Padding,
        max_num_seqs: int,
    ) -> None:
        """`compute` gives logits [size, vocab_size] of rows int64 [5, size], in the order of `DecodeRows`."""
        self.num_replays = 0
        self._compute = compute
        self._padding = padding
        self._sizes = bucket_sizes(max_num_seqs)
        self._inputs = {
            size: torch.tensor(padding.rows(size).lists(), device=accelerator.device) for size in self._sizes
        }
        # A graph's own would stay taken as long as the graph is there: gigabytes for all sizes together.
        self._logits = torch.empty_like(compute(self._inputs[self._sizes[-1]]))  # [largest size, vocab_size]
        self._graphs: dict[int, Work] = {
            size: accelerator.capture(partial(self._fill_logits, self._inputs[size]))
            for size in reversed(self._sizes)  # the largest first: the others then fit its memory
        }

    def takes(self, num_rows: int) -> bool:
        """Whether there is a graph for so many."""
        return 0 < num_rows <= self._sizes[-1]

    def pad(self, rows: DecodeRows) -> tuple[list[int], ...]:
        """The lists of `rows`, each as long as the next graph's."""
        num_rows = len(rows.token_ids)
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        padding = self._padding.rows(size - num_rows)
        return tuple(ours + dummies for ours, dummies in zip(rows.lists(), padding.lists(), strict=True))

    def run(self, lists: list[torch.Tensor]) -> torch.Tensor:
        """Logits of the padded rows, good until the next run."""
        size = len(lists[0])
        torch.stack(lists, out=self._inputs[size])
        self.num_replays += 1
        return self._graphs[size]()

    def _fill_logits(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._logits[: inputs.shape[1]].copy_(self._compute(inputs))
