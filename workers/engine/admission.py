"""Who may start when not everybody fits: how long a sequence is looked past, and what is kept for those that run."""

from collections.abc import Iterable
from dataclasses import dataclass

from workers.engine.config import EngineConfig
from workers.engine.sequence import Sequence

MAX_PASSED_OVER = 16  # admissions past a waiting sequence that does not fit yet
MAX_PASSED_OVER_SECONDS = 2.0  # and how long they may go on


@dataclass(slots=True)
class Door:
    """Between the waiting and the running. Used by the scheduler only."""

    is_narrow: bool = False  # free blocks fell below the low watermark, and are not above the high one again

    def margin(self, config: EngineConfig, num_available: int) -> int:
        """Free blocks that a newcomer must leave to those that run, so that they need not give way soon.

        Below the low watermark nobody starts until the high one is reached: what ended has to pay back first.
        """
        if num_available <= config.num_low_watermark_blocks:
            self.is_narrow = True
        elif num_available > config.num_high_watermark_blocks:
            self.is_narrow = False
        return config.num_high_watermark_blocks if self.is_narrow else config.num_low_watermark_blocks

    def count(self, passed_over: Iterable[Sequence], now: float) -> None:
        """Another one started before these."""
        for sequence in passed_over:
            sequence.num_passed_over += 1
            if sequence.passed_over_since is None:
                sequence.passed_over_since = now

    def is_closed_by(self, sequence: Sequence, now: float) -> bool:
        """Whether one that does not fit was passed over so often or so long that nobody may start before it."""
        since = sequence.passed_over_since
        is_overdue = since is not None and now - since >= MAX_PASSED_OVER_SECONDS
        return is_overdue or sequence.num_passed_over >= MAX_PASSED_OVER
