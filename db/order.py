"""Where a job stands in the order in which lua/pop.lua takes them, told from counts: no queue is ever walked."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from db.settings import Settings

LIFTED_EVERY = 4  # of the pops, one goes to a job that aging lifted above a better tier


@dataclass(frozen=True)
class Ahead:
    """Of one tier: how many jobs wait, and how many of them go before a certain job by aging."""

    waiting: int
    aged: int


def jobs_ahead(*, better: Sequence[Ahead], same: int, lifted: int) -> int:
    """How many jobs start before one that has these ahead of it.

    `better`: the better tiers, best first. `same`: older jobs of its tier. `lifted`: jobs of worse tiers, ahead by
    aging. Where the orders by tier and by age differ they take turns, and the job starts by the one that reaches it
    first.
    """
    by_tier = sum(tier.waiting for tier in better) + same
    all_ahead = by_tier + lifted
    by_tier += min(lifted, by_tier // (LIFTED_EVERY - 1))

    def is_reached(num_turns: int) -> bool:
        """Whether so many pops by age, and the pops by tier between them, come to the job."""
        num_by_tier, num_by_age = (LIFTED_EVERY - 1) * num_turns, same + lifted + 1
        for tier in better:
            taken = min(tier.waiting, num_by_tier)
            num_by_tier -= taken
            num_by_age += max(0, tier.aged - taken)
        return num_by_age <= num_turns

    num_turns = bisect_left(range(all_ahead + 1), True, key=is_reached)
    return min(by_tier, all_ahead, num_turns * LIFTED_EVERY - 1)


def lifted_after(tier: int, settings: Settings) -> float:
    """Seconds of waiting after which aging has put a job level with new ones of the best tier; infinite for never."""
    if settings.queue_policy == "fcfs" or (tier > 0 and settings.aging_boost <= 0):
        return inf
    return settings.aging_threshold_seconds + tier / settings.aging_boost if tier > 0 else 0.0
