"""The engine: sequences in, one token per sequence and step out."""

import time
from collections.abc import Callable
from typing import Protocol

from workers.engine.batch import Batch
from workers.engine.config import EngineConfig, blocks_needed
from workers.engine.errors import InvalidTokens, NeverFits, PromptTooLong, StepFailed
from workers.engine.outputs import FinishReason, Sample, StepOutput
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence, Status


class Runner(Protocol):
    """Computes a batch. `ModelRunner` is the one there is; tests may count or fail."""

    def run(self, batch: Batch) -> list[Sample]:
        """One sample per sequence of `batch.sampled`, in that order."""
        ...


class Engine:
    """A continuous-batching engine. One thread calls everything here; nothing blocks but the computing itself."""

    def __init__(self, config: EngineConfig, runner: Runner, *, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self.runner = runner
        self.scheduler = Scheduler(config)
        self.num_steps = 0
        # time.monotonic() when a step last retired or work came to an idle engine: with work, its age is the health.
        self.last_retired_at = time.monotonic()
        self._clock = clock  # Unix seconds, as in `Sequence.arrival`
        self._sequences: dict[str, Sequence] = {}  # waiting and running, by id
        self._aborted: set[Sequence] = set()  # while a step was in flight; dropped when it retires

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def waiting_ids(self) -> list[str]:
        """The sequences that are not running: they do not fit yet, or had to give way."""
        return [sequence.id for sequence in self.scheduler.waiting]

    @property
    def num_free_seats(self) -> int:
        """Seats that no sequence sits in or waits for."""
        return max(0, self.config.max_num_seqs - len(self._sequences))

    @property
    def num_free_blocks(self) -> int:
        """Free blocks less those reserved for running sequences; what the waiting ones need is not subtracted."""
        return self.scheduler.blocks.num_available

    def add(self, sequence: Sequence) -> FinishReason | None:
        """Queue a sequence, or return why it has already ended with the output tokens it came with.

        Raises PromptTooLong, NeverFits or InvalidTokens (each a Refused) when it can never run.
        """
        assert sequence.id not in self._sequences, f"sequence {sequence.id} is in the engine already"
        self._refuse_impossible(sequence)
        finish_reason = sequence.finish_reason(self.config.eos_token_ids, self.config.max_model_len)
        if finish_reason is not None:
            return finish_reason
        if not self.has_work:
            self.last_retired_at = time.monotonic()
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)
        return None

    def abort(self, sequence_id: str) -> None:
        """Drop a sequence for good, without an output; an unknown id changes nothing."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return
        if self.scheduler.is_in_flight:
            self._aborted.add(sequence)
        else:
            self._end(sequence)

    def step(self) -> list[StepOutput]:
        """Schedule, run, retire: an output for every sequence that got a token or failed; those that ended are gone.

        Raises StepFailed when the batch could not be computed; its sequences are gone, the others unharmed.
        """
        batch = self.scheduler.schedule(self._clock())
        if not batch:
            return []
        try:
            samples = self.runner.run(batch)
        except Exception as cause:
            raise StepFailed(self._drop(batch), cause) from cause
        return self._retire(batch, samples)

    def _retire(self, batch: Batch, samples: list[Sample]) -> list[StepOutput]:
        self._land()
        return [
            self._accept(sequence, sample)
            for sequence, sample in zip(batch.sampled, samples, strict=True)
            if sequence.status is not Status.FINISHED  # Aborted meanwhile: the token in flight is dropped.
        ]

    def _drop(self, batch: Batch) -> list[str]:
        """End every sequence of a batch that could not be computed; their ids."""
        self._land()
        failed = [sequence for sequence in batch.sequences if sequence.status is not Status.FINISHED]
        for sequence in failed:
            self._end(sequence)
        return [sequence.id for sequence in failed]

    def _land(self) -> None:
        """The step in flight is over: what was aborted meanwhile can go."""
        self.scheduler.retire()
        self.num_steps += 1
        self.last_retired_at = time.monotonic()
        for sequence in self._aborted:
            self._end(sequence)
        self._aborted.clear()

    def _accept(self, sequence: Sequence, sample: Sample) -> StepOutput:
        """Append the sampled token and end the sequence if it was the last."""
        finish_reason = None
        if sample.error is None:
            sequence.token_ids.append(sample.token_id)
            finish_reason = sequence.finish_reason(self.config.eos_token_ids, self.config.max_model_len)
        if finish_reason is not None or sample.error is not None:
            self._end(sequence)
        return StepOutput(
            sequence.id, sample.token_id, sample.logprobs, finish_reason, sequence.num_cached_tokens, sample.error
        )

    def _end(self, sequence: Sequence) -> None:
        """The one way out, for every end: finished, failed, aborted."""
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)

    def _refuse_impossible(self, sequence: Sequence) -> None:
        config, num_prompt_tokens = self.config, sequence.num_prompt_tokens
        if not num_prompt_tokens:
            raise InvalidTokens("the prompt is empty; it needs at least one token")
        if not 0 <= min(sequence.token_ids) <= max(sequence.token_ids) < config.vocab_size:
            raise InvalidTokens(f"a token id is outside the vocabulary of {config.vocab_size:,} (0 to one less)")
        if num_prompt_tokens >= config.max_model_len:
            raise PromptTooLong(num_prompt_tokens, config.max_model_len)
        max_tokens = min(sequence.params.max_tokens, config.max_model_len - num_prompt_tokens)
        num_blocks = blocks_needed(num_prompt_tokens, max_tokens, config.block_size)
        if num_blocks > config.num_blocks:
            raise NeverFits(num_prompt_tokens + max_tokens, num_blocks, config.num_blocks, config.block_size)
