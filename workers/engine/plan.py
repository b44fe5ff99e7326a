"""The step in the making: who computes how many tokens, and what is left of budget and time."""

from dataclasses import dataclass, field

from workers.engine.sequence import Sequence
from workers.engine.step_time import StepTime

SLOWDOWN = 3.0  # of sequences that wait for a token each, by chunks beside them, where no target is set
# Between two tokens, which a reader does not tell from fewer: a chunk may take as much anyway.
UNNOTICED_SECONDS = 0.028


@dataclass(slots=True)
class Plan:
    """Filled by the scheduler. Chunks beside running sequences are as large as the target lets the step be.

    That is `target_itl_ms`, or else about `SLOWDOWN` times what the step would take without them, 28 ms at least: many
    that run are hardly stopped by a chunk that would be long for a few. It is more where over half as many wait to
    begin.
    """

    budget: int  # tokens that may still be added
    step_time: StepTime
    target_itl_ms: float | None
    sequences: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    _members: set[Sequence] = field(default_factory=set)
    _num_rows: int = 0
    _num_pairs: int = 0
    _target_seconds: float | None = None  # None: nobody waits for the next token, or too little is known
    _has_chunk: bool = False

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._members

    def take(self, sequence: Sequence, num_new: int) -> None:
        """Let the step compute the sequence's next `num_new` tokens."""
        self.sequences.append(sequence)
        self.num_new_tokens.append(num_new)
        self._members.add(sequence)
        self.budget -= num_new
        end = sequence.num_started_tokens + num_new
        self._num_rows += num_new
        self._num_pairs += num_new * end - num_new * (num_new - 1) // 2
        self._has_chunk = self._has_chunk or num_new > 1

    def keep_target(self, num_prompts: int) -> None:
        """From here on come chunks, of so many prompts: those that are planned so far wait for a token each."""
        if not self.sequences or not self.step_time.is_known:
            return
        if self.target_itl_ms is not None:
            self._target_seconds = self.target_itl_ms / 1000
        else:
            share = max(1.0, 2 * num_prompts / len(self.sequences))
            slowed = SLOWDOWN * self.step_time.seconds(self._num_rows, self._num_pairs)
            self._target_seconds = share * max(UNNOTICED_SECONDS, slowed)

    def most(self, num_before: int, num_missing: int, block_size: int) -> int:
        """How many of the missing tokens behind `num_before` others the step can take.

        Under a target in whole blocks, and one block at least for the first chunk, so that prompts get on. Only a
        target that was set is a promise. Else the block that it falls into is whole: where products cost much more than
        reading, a chunk is but one or two, and the next smaller one would compute as much beside it as in it.
        """
        num_new = min(num_missing, self.budget)
        if self._target_seconds is None or num_new <= 0:
            return num_new
        in_time = self.step_time.most_rows(self._target_seconds, self._num_rows, self._num_pairs, num_before)
        if in_time >= num_new:
            return num_new
        if in_time and self.target_itl_ms is None:
            in_time += block_size - 1
        whole = (num_before + in_time) // block_size * block_size - num_before
        return min(num_new, max(whole, 0 if self._has_chunk else block_size - num_before % block_size))


def can_fly(sequence: Sequence, max_model_len: int) -> bool:
    """Whether it can be planned beside the step in flight: not when that decides how, or whether, it goes on."""
    if not sequence.num_flying_tokens:
        return True
    num_output = sequence.num_output_tokens + sequence.num_future_tokens
    is_over = (
        num_output >= sequence.params.max_tokens or sequence.num_tokens + sequence.num_future_tokens >= max_model_len
    )
    if sequence.num_future_tokens and (is_over or sequence.needs_host):
        return False
    return not is_unforked(sequence) or sequence.num_started_tokens < sequence.num_prompt_tokens


def is_unforked(sequence: Sequence) -> bool:
    """Whether it computes the prompt for a group's other choices too."""
    return sequence.group is not None and not sequence.group.is_forked
