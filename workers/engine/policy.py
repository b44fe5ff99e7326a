"""Who goes first: the order of waiting sequences, and backwards that of preemption victims. One small class each."""

from dataclasses import dataclass
from typing import Protocol

from workers.engine.sequence import Sequence

Rank = tuple[float, ...]


class Policy(Protocol):
    """An order that time may change. `now` is Unix seconds like `Sequence.arrival`."""

    def level(self, sequence: Sequence, now: float) -> float:
        """The aged tier: what a waiting sequence of a better tier must be below to take a seat from this one."""
        ...

    def rank(self, sequence: Sequence, now: float) -> Rank:
        """Smaller first."""
        ...


@dataclass(frozen=True)
class Aging:
    """By (aged level, arrival): the queue's own rule, so that a job keeps its place inside the engine."""

    threshold_seconds: float
    boost: float  # levels gained per second of waiting beyond the threshold

    def level(self, sequence: Sequence, now: float) -> float:
        """The tier, falling with time, so that none starves."""
        overdue = now - sequence.arrival - self.threshold_seconds
        return sequence.tier if overdue <= 0 else max(0.0, sequence.tier - self.boost * overdue)

    def rank(self, sequence: Sequence, now: float) -> Rank:
        return self.level(sequence, now), sequence.arrival


@dataclass(frozen=True)
class FirstComeFirstServed:
    """By arrival alone."""

    def level(self, sequence: Sequence, now: float) -> float:
        return 0.0

    def rank(self, sequence: Sequence, now: float) -> Rank:
        return 0.0, sequence.arrival


@dataclass(frozen=True)
class ShortestFirst:
    """By aged level, then by what is left to compute at most. What has aged to the top goes by arrival before that."""

    aging: Aging

    def level(self, sequence: Sequence, now: float) -> float:
        return self.aging.level(sequence, now)

    def rank(self, sequence: Sequence, now: float) -> Rank:
        level = self.level(sequence, now)
        is_overdue = level == 0 and now - sequence.arrival > self.aging.threshold_seconds
        return level, 0 if is_overdue else sequence.num_tokens_left, sequence.arrival


def make_policy(name: str, *, threshold_seconds: float, boost: float) -> Policy:
    """The policy of that name; ValueError for others."""
    aging = Aging(threshold_seconds, boost)
    policies: dict[str, Policy] = {
        "aging": aging,
        "fcfs": FirstComeFirstServed(),
        "shortest_first": ShortestFirst(aging),
    }
    if name not in policies:
        raise ValueError(f"policy is {name!r}; it must be one of {', '.join(policies)}")
    return policies[name]
