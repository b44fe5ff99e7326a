"""Who has to give way and for whom; whether what it computed is copied away or computed again. Changes nothing."""

from collections.abc import Callable
from collections.abc import Sequence as ListLike

from workers.engine.block_manager import BlockManager
from workers.engine.config import EngineConfig
from workers.engine.plan import Plan
from workers.engine.policy import Policy
from workers.engine.sequence import Sequence
from workers.engine.step_time import StepTime

MAX_PREEMPTIONS = 3  # of one sequence; from then on others give way first, and none for a seat


class Preemption:
    """The scheduler's judgement. `running` is in its order: the tail gives way first."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, policy: Policy, step_time: StepTime) -> None:
        self.config = config
        self.blocks = blocks
        self.policy = policy
        self.step_time = step_time
        self.num_recomputes = 0  # sequences and groups that gave way, and are computed again
        self.num_swaps = 0  # and those whose blocks were copied to the host
        self.num_recomputed_tokens = 0  # given up by the first

    @property
    def num(self) -> int:
        """How often somebody gave way."""
        return self.num_recomputes + self.num_swaps

    def beneficiary(
        self, waiting: ListLike[Sequence], running: ListLike[Sequence], num_seats: Callable[[], int], now: float
    ) -> Sequence | None:
        """The best waiting sequence, if it has no seat or no blocks and gets them when worse tiers give way."""
        if not self.is_disputed(waiting, running, now):
            return None
        best = min(waiting, key=lambda s: self.policy.rank(s, now))
        num_free_seats, num_free_blocks = num_seats(), self.blocks.num_available
        if self._fits(best, num_free_seats, num_free_blocks):
            return None
        victims = self.may_give_way(running, best.tier, now)
        num_free_seats += sum(victim.seats for victim in victims)
        num_free_blocks += sum(map(num_held, victims))
        return best if self._fits(best, num_free_seats, num_free_blocks) else None

    def is_disputed(self, waiting: ListLike[Sequence], running: ListLike[Sequence], now: float) -> bool:
        """Whether somebody may take a running sequence's place. Without new ones it stays false: levels only fall."""
        if not waiting or not running:
            return False
        best = min([sequence.tier for sequence in waiting])
        return any(s.tier > best and self._gives_way(s, best, now) for s in running)

    def may_give_way(self, running: ListLike[Sequence], tier: int, now: float) -> list[Sequence]:
        """Whom one of `tier` may take place from: those of worse tiers, aged as they are, not chosen too often."""
        return [sequence for sequence in running[::-1] if self._gives_way(sequence, tier, now)]

    def has_room(self, sequence: Sequence, num_seats: int) -> bool:
        """Whether it could start by now."""
        return self._fits(sequence, num_seats, self.blocks.num_available)

    def victim(self, running: ListLike[Sequence], plan: Plan) -> Sequence | None:
        """The tail of the running sequences that have no part in this step yet; it may be the one in need itself.

        None when all have: the rest of a group then waits for the next step.
        """
        candidates = [s for s in running if not any(member in plan for member in members_of(s))]
        spared = [s for s in candidates if s.num_preemptions < MAX_PREEMPTIONS]
        chosen = spared or candidates
        return chosen[-1] if chosen else None

    def choose_swap(self, members: ListLike[Sequence]) -> bool:
        """Whether the blocks of those that give way are copied to the host, rather than their tokens computed again.

        Whichever takes less time, as measured. It is counted here.
        """
        num_tokens = sum(member.num_computed_tokens for member in members)
        if self._is_swap_cheaper(num_tokens, sum(len(member.block_table) for member in members)):
            self.num_swaps += 1
            return True
        self.num_recomputes += 1
        self.num_recomputed_tokens += num_tokens
        return False

    def _is_swap_cheaper(self, num_tokens: int, num_blocks: int) -> bool:
        if not self.config.host_blocks or not self.step_time.is_known:
            return False
        copying = 2 * num_blocks * self.step_time.seconds_per_block
        return copying < self.step_time.seconds(num_tokens, num_tokens * num_tokens // 2)

    def _gives_way(self, sequence: Sequence, tier: int, now: float) -> bool:
        return self.policy.level(sequence, now) > tier and sequence.num_preemptions < MAX_PREEMPTIONS

    def _fits(self, sequence: Sequence, num_seats: int, num_blocks: int) -> bool:
        return num_seats >= sequence.seats and num_blocks >= -(-sequence.num_tokens // self.config.block_size)


def members_of(sequence: Sequence) -> list[Sequence]:
    """Those that run with it: itself, and its group's other choices once they have forked."""
    group = sequence.group
    return [sequence] if group is None or not group.is_forked else list(group.living)


def num_held(sequence: Sequence) -> int:
    """Blocks that it has or was promised."""
    return len(sequence.block_table) + sequence.num_reserved_blocks
