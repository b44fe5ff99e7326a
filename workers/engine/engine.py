"""The engine: sequences in, one token per sequence and step out."""

import time
from collections import deque
from collections.abc import Callable

from workers.engine.batch import Batch
from workers.engine.block_manager import BlockManager
from workers.engine.computing import Runner, make_steps
from workers.engine.config import EngineConfig
from workers.engine.errors import EngineBroken
from workers.engine.group import SequenceGroup
from workers.engine.moves import MoveStats
from workers.engine.outputs import Computed, FinishReason, Sample, StepOutput
from workers.engine.policy import make_policy
from workers.engine.preemption import num_held
from workers.engine.refusal import refuse_impossible
from workers.engine.results import results_of
from workers.engine.scheduler import Scheduler
from workers.engine.search import Search
from workers.engine.sequence import Sequence, Status
from workers.engine.stats import EngineStats, stats_of
from workers.engine.step_time import StepTime


class Engine:
    """A continuous-batching engine. One thread calls everything here; nothing blocks but the computing itself.

    With `is_overlapping` a step is computed beside it, on another thread or a GPU, while the next one is planned and
    the caller uses what the one before gave. The outputs are the same.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        blocks: BlockManager | None = None,
        moves: MoveStats | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`blocks` may come with tiers below it, between which `moves` are counted; by default there are none."""
        self.config = config
        self.runner = runner
        self.step_time = StepTime()
        policy = make_policy(config.policy, threshold_seconds=config.aging_threshold_seconds, boost=config.aging_boost)
        blocks = blocks or BlockManager(config.num_blocks, config.block_size, is_caching=config.is_caching)
        self.scheduler = Scheduler(config, blocks, policy, self.step_time)
        self.moves = moves or MoveStats()
        self.num_steps = 0
        self.last_retired_at = time.monotonic()  # or when work came to an idle engine: with work, its age is the health
        self._clock = clock  # Unix seconds, as in `Sequence.arrival`
        observe, is_overlapping = self.step_time.observe, config.is_overlapping
        self._computing = make_steps(runner, self._run, observe, is_overlapping=is_overlapping)
        self._flights: deque[Batch] = deque()  # what is being computed, the oldest first
        self._searches: dict[str, Search] = {}  # beam searches among them, by the same id
        # Living sequences by the id that the caller knows; a group's are the list that the group has.
        self._units: dict[str, list[Sequence]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._units)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def waiting_ids(self) -> list[str]:
        """The sequences that are not running: they do not fit yet, or had to give way."""
        return [sequence.unit_id for sequence in self.scheduler.waiting]

    @property
    def num_free_seats(self) -> int:
        """Seats that no sequence sits in or waits for."""
        return max(0, self.config.max_num_seqs - sum(map(len, self._units.values())))

    @property
    def num_free_blocks(self) -> int:
        """Free blocks less those reserved for running sequences; what the waiting ones need is not subtracted."""
        return self.scheduler.blocks.num_available

    def num_blocks_for(self, tier: int) -> int:
        """KV blocks of running sequences that would give way to one of `tier`; 0 when none would. Any thread."""
        now = self._clock()
        return sum(map(num_held, self.scheduler.preemption.may_give_way(list(self.scheduler.running), tier, now)))

    def starved_ids(self, seconds: float) -> list[str]:
        """Sequences that were made to give way and have waited for so long since: another engine may have room."""
        now = self._clock()
        waiting = [s for s in self.scheduler.waiting if s.preempted_at is not None]
        return [s.unit_id for s in waiting if s.preempted_at is not None and now - s.preempted_at >= seconds]

    def stats(self) -> EngineStats:
        """As of now, or of a moment ago. Any thread."""
        return stats_of(self)

    def add(self, sequence: Sequence) -> FinishReason | None:
        """Queue a sequence, or return why it has already ended with the output tokens it came with.

        Raises PromptTooLong, NeverFits or InvalidTokens (each a Refused) when it can never run.
        """
        refuse_impossible(sequence, self.config)
        finish_reason = sequence.finish_reason(self.config.eos_token_ids, self.config.max_model_len)
        if finish_reason is None:
            self._queue(sequence.id, [sequence])
        return finish_reason

    def add_group(self, group: SequenceGroup) -> dict[int, FinishReason]:
        """Queue the choices of one prompt as one; returns those that have already ended, by choice. Raises as `add`."""
        refuse_impossible(group.leader, self.config, num_choices=len(group.living))
        reasons = {
            sequence.choice: sequence.finish_reason(self.config.eos_token_ids, self.config.max_model_len)
            for sequence in group.living
        }
        group.living = [sequence for sequence in group.living if reasons[sequence.choice] is None]
        if group.living:
            self._queue(group.id, group.living)
            if group.leader.params.num_beams > 1:
                self._searches[group.id] = Search(group, self.config)
        return {choice: reason for choice, reason in reasons.items() if reason is not None}

    def abort(self, id: str) -> None:
        """Drop a sequence, or a whole group, for good and without an output; an unknown id changes nothing."""
        self._searches.pop(id, None)
        for sequence in list(self._units.pop(id, ())):
            self.scheduler.remove(sequence)

    def abort_choice(self, id: str, choice: int) -> None:
        """Drop one of a group's choices; the others go on. One that is not there changes nothing."""
        for sequence in self._units.get(id, ()):
            if sequence.choice == choice:
                self._end(sequence)
                return

    def step(self) -> list[StepOutput]:
        """Schedule, run, retire: an output for every sequence that got a token or failed; those that ended are gone.

        A step that cannot be computed is tried again in halves, down to the sequence that is at fault, which fails
        alone. Raises EngineBroken when none of several can be computed.
        """
        if not self._flights and not self._launch():
            return []
        if self.config.is_overlapping:
            self._launch()
        batch = self._flights.popleft()
        try:
            computed = self._computing.wait()
        except Exception as cause:
            return self._isolate(batch, cause)
        return self._retire(batch, computed)

    def wait_computed(self) -> None:
        """Return once nothing is being computed beside this thread; what was is retired by the next step."""
        self._computing.wait_all()

    def close(self) -> None:
        """End the threads beside this one."""
        self._computing.close()
        self.scheduler.blocks.close()

    def _queue(self, id: str, sequences: list[Sequence]) -> None:
        assert id not in self._units, f"sequence {id} is in the engine already"
        if not self.has_work:
            self.last_retired_at = time.monotonic()
        self._units[id] = sequences
        self.scheduler.add(sequences[0])

    def _launch(self) -> bool:
        """Have the next step computed, if there is one that can be planned now."""
        batch = self.scheduler.schedule(self._clock())
        if not batch:
            return False
        self._flights.append(batch)
        self._computing.launch(batch)
        return True

    def _run(self, batch: Batch) -> Computed:
        began = time.perf_counter()
        num_rows, num_pairs = len(batch.input_ids), batch.num_pairs  # read before the batch is advanced
        computed = self.runner.run(batch)
        self.step_time.observe(time.perf_counter() - began, num_rows, num_pairs)
        return computed

    def _retire(self, batch: Batch, computed: Computed) -> list[StepOutput]:
        self._land()
        outputs: list[StepOutput] = []
        for sequence, sample in results_of(batch, computed):
            if sequence.status is not Status.FINISHED:  # else it was aborted meanwhile: the token in flight is dropped
                outputs.extend(self._accept(sequence, sample))
        return outputs

    def _land(self, *, is_good: bool = True) -> None:
        self.scheduler.retire(is_good=is_good)
        self.num_steps += 1
        self.last_retired_at = time.monotonic()

    def _accept(self, sequence: Sequence, sample: Sample) -> list[StepOutput]:
        """Append the sampled token and end the sequence if it was the last."""
        if sample.error is not None:
            if sample.is_poisonous:
                self.scheduler.blocks.revoke(sequence)
            return [self._fail(sequence, sample.error, sample.error_code)]
        try:
            if sequence.params.num_beams > 1:
                return self._search(sequence, sample)
            if sample.embedding is None:
                sequence.append(sample.token_id)
        except Exception as error:  # the grammar's
            return [self._fail(sequence, f"the grammar cannot go on: {error}", "grammar_failed")]
        return [self._tell(sequence, sample)]

    def _tell(self, sequence: Sequence, sample: Sample) -> StepOutput:
        eos_token_ids = self.config.eos_token_ids
        finish_reason = sequence.finish_reason(eos_token_ids, self.config.max_model_len)
        if finish_reason is not None:
            self._end(sequence)
        return StepOutput(  # by position: it is made once per token, and that is twice as fast
            sequence.unit_id,
            sample.token_id,
            sample.logprobs,
            finish_reason,
            sequence.num_cached_tokens,
            finish_reason == "stop" and sequence.is_stopped(eos_token_ids),
            sequence.choice,
            None if sequence.params.prompt_logprobs is None else sequence.take_prompt_logprobs(),
            sample.embedding,
        )

    def _search(self, sequence: Sequence, sample: Sample) -> list[StepOutput]:
        """Give a beam's candidates to its search; all its outputs when that was the last step."""
        search = self._searches[sequence.unit_id]
        search.put(sequence, sample, self.scheduler)
        if not search.is_done:
            return []
        self.abort(search.group.id)
        return search.outputs()

    def _fail(self, sequence: Sequence, error: str, code: str = "engine_error") -> StepOutput:
        """Drop a sequence, with its group, for what is wrong with it."""
        self.abort(sequence.unit_id)
        return StepOutput(sequence.unit_id, -1, None, None, sequence.num_cached_tokens, error=error, error_code=code)

    def _end(self, sequence: Sequence) -> None:
        """Let a sequence go that has all its tokens."""
        id, group = sequence.unit_id, sequence.group
        self.scheduler.remove(sequence)
        if group is None or not group.living:
            del self._units[id]

    def _isolate(self, batch: Batch, cause: Exception) -> list[StepOutput]:
        """Compute a failed step again in halves, and theirs, and fail those sequences that fail alone."""
        failed = [batch, *self._flights]  # with what was built on it
        self._land(is_good=False)
        while self._flights:
            self._flights.popleft()
            self._computing.discard()
            self._land(is_good=False)
        if any(each.moves and not each.moves.is_done for each in failed):  # blocks that count as computed are not there
            raise EngineBroken(len(batch), cause) from cause
        every = zip(batch.sequences, batch.num_new_tokens, strict=True)
        pairs = [(sequence, num_new) for sequence, num_new in every if sequence.status is Status.RUNNING]
        failures: dict[Sequence, Exception] = {}
        outputs = self._redo_halves(batch, pairs, cause, failures)
        num_units = len({sequence.unit_id for sequence, _ in pairs})
        if num_units > 1 and len(failures) == len(pairs):
            raise EngineBroken(num_units, cause) from cause
        for sequence, error in failures.items():
            if sequence.status is not Status.FINISHED:
                outputs.append(self._fail(sequence, f"{type(error).__name__}: {error}"))
        return outputs

    def _redo_halves(
        self, failed: Batch, pairs: list[tuple[Sequence, int]], cause: Exception, failures: dict[Sequence, Exception]
    ) -> list[StepOutput]:
        if len(pairs) == 1:
            failures[pairs[0][0]] = cause
            return []
        half = len(pairs) // 2
        return self._redo(failed, pairs[:half], failures) + self._redo(failed, pairs[half:], failures)

    def _redo(
        self, failed: Batch, pairs: list[tuple[Sequence, int]], failures: dict[Sequence, Exception]
    ) -> list[StepOutput]:
        living = [pair for pair in pairs if pair[0].status is Status.RUNNING]
        if not living:
            return []
        batch = self.scheduler.redo(failed, [sequence for sequence, _ in living], [num_new for _, num_new in living])
        try:
            computed = self.runner.run(batch)
        except Exception as cause:
            self._land(is_good=False)
            return self._redo_halves(failed, living, cause, failures)
        return self._retire(batch, computed)
