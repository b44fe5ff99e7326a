"""A beam search in the engine: beams are a group's choices, which fork and end as the search says."""

from collections.abc import Iterable

from workers.engine.beam import BeamSearch, BeamStep, Hypothesis
from workers.engine.config import EngineConfig
from workers.engine.group import SequenceGroup
from workers.engine.outputs import Sample, StepOutput, TokenLogprobs
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import Sequence


class Search:
    """One job's. It goes on when every beam has its candidates, and says nothing before its end."""

    def __init__(self, group: SequenceGroup, config: EngineConfig) -> None:
        leader = group.leader
        params = leader.params
        self.group = group
        self._num_outputs = params.n
        self._has_logprobs = params.logprobs is not None
        self._num_cached_tokens = 0
        self._num_born = len(group.living)
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        self._found: dict[Sequence, Sample] = {}  # of beams whose step has retired
        self._bookkeeping = BeamSearch(
            params.num_beams,
            max_tokens=min(params.max_tokens, config.max_model_len - leader.num_prompt_tokens),
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            stop_token_ids=params.stop_ids(config.eos_token_ids),
        )

    @property
    def is_done(self) -> bool:
        return self._bookkeeping.is_done

    def put(self, sequence: Sequence, sample: Sample, scheduler: Scheduler) -> None:
        """Take a beam's candidates; with the last ones, let the beams of the next step go on."""
        self._num_cached_tokens = sequence.num_cached_tokens
        self._prompt_logprobs = sequence.take_prompt_logprobs() or self._prompt_logprobs
        self._found[sequence] = sample
        beams = [sequence] if sequence.num_output_tokens == 0 else list(self.group.living)
        if any(beam not in self._found for beam in beams):
            return
        steps = self._bookkeeping.advance([self._found[beam].candidates for beam in beams])
        self._found.clear()
        if steps:
            self._advance(beams, steps, scheduler)

    def outputs(self) -> list[StepOutput]:
        """All tokens of the best outputs, once the search is done; one error when there is none."""
        hypotheses = self._bookkeeping.best(self._num_outputs)
        if not hypotheses:
            return [StepOutput(self.group.id, -1, None, None, self._num_cached_tokens, error="no output was found")]
        return [each for choice, found in enumerate(hypotheses) for each in self._tell(choice, found)]

    def _advance(self, beams: list[Sequence], steps: list[BeamStep], scheduler: Scheduler) -> None:
        """The first child of a beam takes its place; the others fork from it before it has the next token."""
        used: set[Sequence] = set()
        going_on: list[Sequence] = []
        for step in steps:
            parent = beams[step.parent]
            if parent not in used:
                used.add(parent)
                going_on.append(parent)
            else:
                going_on.append(self._fork(parent, scheduler))
        for beam in list(self.group.living):
            if beam not in going_on:
                scheduler.remove(beam)
        self.group.living[:] = going_on
        for beam, step in zip(going_on, steps, strict=True):
            beam.append(step.token_id)

    def _fork(self, parent: Sequence, scheduler: Scheduler) -> Sequence:
        child = Sequence(
            f"{self.group.id}/{self._num_born}",
            parent.prompt_ids,
            parent.params,
            output_ids=parent.output_ids,
            tier=parent.tier,
            arrival=parent.arrival,
            salt=parent.salt,
            grammar=None if parent.grammar is None else parent.grammar.fork(),
        )
        child.group = self.group
        self._num_born += 1
        scheduler.fork(parent, child)
        return child

    def _tell(self, choice: int, found: Hypothesis) -> Iterable[StepOutput]:
        last = len(found.token_ids) - 1
        for index, (token_id, logprob) in enumerate(zip(found.token_ids, found.logprobs, strict=True)):
            finish_reason = found.finish_reason if index == last else None
            yield StepOutput(
                sequence_id=self.group.id,
                token_id=token_id,
                logprobs=TokenLogprobs(logprob, ()) if self._has_logprobs else None,
                finish_reason=finish_reason,
                num_cached_tokens=self._num_cached_tokens,
                is_stop_token=finish_reason == "stop",
                choice=choice,
                prompt_logprobs=self._prompt_logprobs if choice == 0 and index == 0 else None,
            )
