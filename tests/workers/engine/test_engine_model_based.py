"""Random arrivals, aborts, failures, forks, preemptions and swaps in tiny worlds; all get exactly their tokens."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workers.engine.fakes import Clock, expected_samples, know_steps_to_be_slow, make_engine, make_sequence
from workers.engine.batch import Batch
from workers.engine.errors import NeverFits
from workers.engine.group import SequenceGroup, choice_seed
from workers.engine.outputs import Computed
from workers.engine.sequence import Sequence

MAX_MODEL_LEN = 24


class EngineMachine(RuleBasedStateMachine):
    """Holds the engine to a dictionary of the tokens that each living choice of each living id has yet to give."""

    @initialize(
        num_blocks=st.integers(4, 12),
        token_budget=st.integers(3, 12),
        watermark=st.sampled_from([0.0, 0.2]),
        policy=st.sampled_from(["aging", "fcfs", "shortest_first"]),
        is_overlapping=st.booleans(),
        is_caching=st.booleans(),
        host_blocks=st.sampled_from([0, 2, 8]),
    )
    def start(
        self,
        num_blocks: int,
        token_budget: int,
        watermark: float,
        policy: str,
        is_overlapping: bool,
        is_caching: bool,
        host_blocks: int,
    ) -> None:
        self.clock = Clock()
        self.engine = make_engine(
            clock=self.clock,
            max_num_seqs=3,
            max_model_len=MAX_MODEL_LEN,
            num_blocks=num_blocks,
            token_budget=token_budget,
            watermark_low=watermark / 2,
            watermark_high=watermark,
            policy=policy,
            is_overlapping=is_overlapping,
            is_caching=is_caching,
            host_blocks=host_blocks,
        )
        know_steps_to_be_slow(self.engine)  # so that who gives way is copied to the host, where there is one
        self.runner, self.engine.runner = self.engine.runner, self
        self.expected: dict[str, dict[int, list[int]]] = {}
        self.next_abort: str | None = None
        self.culprit: str | None = None
        self.num_added = 0

    def run(self, batch: Batch) -> Computed:
        """The engine's runner, with what the next step was told to meet."""
        if self.next_abort is not None:
            self.engine.abort(self.next_abort)
        if self.culprit in [sequence.id.partition("/")[0] for sequence in batch.sequences]:
            self.runner.mover.run(batch.moves)  # as a model that fails behind them
            raise RuntimeError("told to fail")
        return self.runner.run(batch)

    @rule(
        num_prompt_tokens=st.integers(1, 20),
        num_delivered=st.integers(0, 3),
        max_tokens=st.integers(1, 12),
        temperature=st.sampled_from([0.0, 1.0]),
        tier=st.integers(0, 2),
        is_shared=st.booleans(),
        n=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def add(
        self,
        num_prompt_tokens: int,
        num_delivered: int,
        max_tokens: int,
        temperature: float,
        tier: int,
        is_shared: bool,
        n: int,
    ) -> None:
        self.num_added += 1
        id = f"s{self.num_added}"
        prompt = list(range(num_prompt_tokens)) if is_shared else make_sequence(id, num_prompt_tokens).prompt_ids
        sequences = [
            make_sequence(
                f"{id}/{choice}",
                prompt,
                output_ids=range(num_delivered * (choice + 1) // n),
                tier=tier,
                arrival=self.clock.now,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=choice_seed(self.num_added, choice),
            )
            for choice in range(n)
        ]
        expected = {
            choice: [sample.token_id for sample in expected_samples(sequence, self.engine.config)]
            for choice, sequence in enumerate(sequences)
        }
        try:
            self._add(id, sequences, expected)
        except NeverFits:
            return
        living = {choice: tokens for choice, tokens in expected.items() if tokens}
        if living:
            self.expected[id] = living

    def _add(self, id: str, sequences: list[Sequence], expected: dict[int, list[int]]) -> None:
        if len(sequences) == 1:
            sequences[0].id = id
            ended = self.engine.add(sequences[0])
            assert (ended is not None) == (not expected[0])
            return
        for choice, sequence in enumerate(sequences):
            sequence.choice = choice
        ended_choices = self.engine.add_group(SequenceGroup(id, sequences))
        assert set(ended_choices) == {choice for choice, tokens in expected.items() if not tokens}

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.expected)))
        self.engine.abort(sequence_id)
        del self.expected[sequence_id]

    @precondition(lambda self: self.expected and not self.engine.config.is_overlapping)
    @rule(data=st.data())
    def step_with_an_abort_in_flight(self, data: st.DataObject) -> None:
        self.next_abort = data.draw(st.sampled_from(sorted(self.expected)))
        del self.expected[self.next_abort]
        self.step(0.1)
        self.next_abort = None

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def step_with_a_culprit(self, data: st.DataObject) -> None:
        """Whatever it is computed with, that fails; it alone is to be dropped."""
        self.culprit = data.draw(st.sampled_from(sorted(self.expected)))
        self.step(0.1)
        self.culprit = None

    @rule(seconds=st.floats(0, 40))
    def step(self, seconds: float) -> None:
        self.clock.now += seconds
        outputs = self.engine.step()
        self.engine.wait_computed()  # so that it does not depend on the machine what the next step meets
        for output in outputs:
            if output.error is not None:
                assert output.sequence_id == self.culprit or self.engine.config.is_overlapping
                del self.expected[output.sequence_id]
                continue
            expected = self.expected[output.sequence_id][output.choice]
            assert output.token_id == expected.pop(0)
            assert (output.finish_reason is not None) == (not expected)
            if not expected:
                del self.expected[output.sequence_id][output.choice]
            if not self.expected[output.sequence_id]:
                del self.expected[output.sequence_id]

    @invariant()
    def holds_together(self) -> None:
        self.engine.scheduler.check_invariants()
        living = {s.id.partition("/")[0] for s in (*self.engine.scheduler.running, *self.engine.scheduler.waiting)}
        assert living == set(self.expected)
        assert self.engine.has_work == bool(living)

    def teardown(self) -> None:
        """Whatever happened, what is left runs to its end in a bounded number of steps and leaves nothing behind."""
        if not hasattr(self, "engine"):
            return
        for _ in range(100 * (1 + len(self.expected))):
            if not self.engine.has_work:
                break
            self.step(0.1)
            self.engine.scheduler.check_invariants()
        assert not self.expected and not self.engine.has_work
        self.engine.step()  # lands what was computed in vain
        assert self.engine.num_free_blocks == self.engine.config.num_blocks


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
