"""Random arrivals, aborts, failures and preemptions in tiny worlds; every sequence still gets exactly its tokens."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.workers.engine.fakes import Clock, expected_samples, make_engine, make_sequence
from workers.engine.batch import Batch
from workers.engine.errors import NeverFits, StepFailed
from workers.engine.outputs import Sample


class EngineMachine(RuleBasedStateMachine):
    """Holds the engine to a dictionary of the tokens that each living sequence has yet to give."""

    @initialize(
        num_blocks=st.integers(4, 12),
        token_budget=st.integers(3, 12),
        watermark=st.sampled_from([0.0, 0.2]),
        policy=st.sampled_from(["aging", "fcfs"]),
    )
    def start(self, num_blocks: int, token_budget: int, watermark: float, policy: str) -> None:
        self.clock = Clock()
        self.engine = make_engine(
            clock=self.clock,
            max_num_seqs=3,
            max_model_len=24,
            num_blocks=num_blocks,
            token_budget=token_budget,
            watermark=watermark,
            policy=policy,
        )
        self.runner, self.engine.runner = self.engine.runner, self
        self.expected: dict[str, list[int]] = {}
        self.next_abort: str | None = None
        self.is_failing = False
        self.num_added = 0

    def run(self, batch: Batch) -> list[Sample]:
        """The engine's runner, with what the next step was told to meet."""
        if self.next_abort is not None:
            self.engine.abort(self.next_abort)
        if self.is_failing:
            raise RuntimeError("told to fail")
        return self.runner.run(batch)

    @rule(
        num_prompt_tokens=st.integers(1, 20),
        num_delivered=st.integers(0, 3),
        max_tokens=st.integers(1, 12),
        temperature=st.sampled_from([0.0, 1.0]),
        tier=st.integers(0, 2),
    )
    def add(self, num_prompt_tokens: int, num_delivered: int, max_tokens: int, temperature: float, tier: int) -> None:
        self.num_added += 1
        sequence = make_sequence(
            f"s{self.num_added}",
            num_prompt_tokens,
            output_ids=range(num_delivered),
            tier=tier,
            arrival=self.clock.now,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=self.num_added,
        )
        expected = [sample.token_id for sample in expected_samples(sequence, self.engine.config)]
        try:
            finish_reason = self.engine.add(sequence)
        except NeverFits:
            assert -(-min(num_prompt_tokens + max_tokens, 24) // 4) > self.engine.config.num_blocks
            return
        assert (finish_reason is not None) == (not expected)
        if expected:
            self.expected[sequence.id] = expected

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.expected)))
        self.engine.abort(sequence_id)
        del self.expected[sequence_id]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def step_with_an_abort_in_flight(self, data: st.DataObject) -> None:
        self.next_abort = data.draw(st.sampled_from(sorted(self.expected)))
        del self.expected[self.next_abort]
        self.step(0.1)
        self.next_abort = None

    @precondition(lambda self: self.expected)
    @rule()
    def step_that_fails(self) -> None:
        self.is_failing = True
        try:
            self.engine.step()
        except StepFailed as failure:
            assert failure.sequence_ids
            for sequence_id in failure.sequence_ids:
                del self.expected[sequence_id]
        else:
            raise AssertionError("there was work, so the step must have failed")
        self.is_failing = False

    @rule(seconds=st.floats(0, 40))
    def step(self, seconds: float) -> None:
        self.clock.now += seconds
        for output in self.engine.step():
            expected = self.expected[output.sequence_id]
            assert output.token_id == expected.pop(0)
            assert (output.finish_reason is not None) == (not expected)
            if not expected:
                del self.expected[output.sequence_id]

    @invariant()
    def holds_together(self) -> None:
        self.engine.scheduler.check_invariants()
        living = {s.id for s in (*self.engine.scheduler.running, *self.engine.scheduler.waiting)}
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
        assert self.engine.num_free_blocks == self.engine.config.num_blocks


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
