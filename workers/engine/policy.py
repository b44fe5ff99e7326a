"""Who goes first: the order of waiting sequences, and backwards that of preemption victims."""

from workers.engine.config import EngineConfig
from workers.engine.sequence import Sequence

Rank = tuple[float, float]


def rank(sequence: Sequence, now: float, config: EngineConfig) -> Rank:
    """(aged level, arrival), smaller first: the queue's own rule, so that a job keeps its place inside the engine.

    `now` is Unix seconds like `sequence.arrival`. A waiting sequence's level falls with time, so that no tier starves.
    """
    if config.policy == "fcfs":
        return 0.0, sequence.arrival
    overdue = max(0.0, now - sequence.arrival - config.aging_threshold_seconds)
    return max(0.0, sequence.tier - config.aging_boost * overdue), sequence.arrival
