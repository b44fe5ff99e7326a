"""Beam search as bookkeeping: which beams go on with which tokens, and which outputs are the best in the end.

The semantics are those of `transformers.GenerationMixin._beam_search` (5.24). No tensors, no model: candidates in,
steps out. Whoever calls it computes the rows and forks the blocks.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from heapq import nlargest
from math import inf, isfinite

from workers.engine.outputs import FinishReason

Candidates = ListLike[tuple[int, float]]  # (token id, log probability) of a beam's likeliest next tokens


@dataclass(frozen=True, slots=True)
class BeamStep:
    """A beam of the next step: the one with index `parent` in this step, and one more token."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output that a search found. Its score is its log probability over its length to the length penalty."""

    token_ids: list[int]
    logprobs: list[float]  # of each token
    score: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Path:
    """An output so far: its last token, and the path before it, which other beams may share."""

    token_id: int
    logprob: float
    before: "_Path | None"


@dataclass(frozen=True, slots=True)
class _Beam:
    path: _Path | None  # None: nothing but the prompt
    score: float  # sum of the log probabilities; minus infinity: stands in for a beam that there is not


@dataclass(frozen=True, slots=True)
class _Candidate:
    parent: int
    path: _Path
    score: float


class BeamSearch:
    """One prompt's search. `advance` once per step until it `is_done`, then `best`."""

    def __init__(
        self,
        num_beams: int,
        *,
        max_tokens: int,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        stop_token_ids: Iterable[int] = (),
    ) -> None:
        """`stop_token_ids` end an output, the model's end-of-sequence tokens among them."""
        self.num_beams = num_beams
        self.max_tokens = max_tokens
        self.length_penalty = length_penalty
        self.early_stopping = early_stopping
        self.is_done = False
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_tokens = 0  # of every running beam
        self._running = [_Beam(None, 0.0)]  # the best first
        self._finished: list[Hypothesis] = []  # the best first, at most `num_beams`

    @property
    def num_candidates(self) -> int:
        """The likeliest tokens to ask of each row: so many that enough go on even if all stop tokens are among them."""
        return max(2, 1 + len(self._stop_token_ids)) * self.num_beams

    def advance(self, rows: ListLike[Candidates]) -> list[BeamStep]:
        """The beams of the next step, `num_beams` of them, or none when the search is done.

        Row i has the candidates of the beam that the last call returned at i; the first call has one row, the
        prompt's. Where there are not enough candidates, copies fill up that never come to anything.
        """
        assert not self.is_done and len(rows) == len(self._running)
        best = self._best_candidates(rows)
        self._num_tokens += 1
        is_at_end = self._num_tokens >= self.max_tokens
        self._finish(each for each in best[: self.num_beams] if is_at_end or self._is_stopped(each))
        going_on = [] if is_at_end else [each for each in best if not self._is_stopped(each)][: self.num_beams]
        self.is_done = not going_on or self._is_good_enough(going_on[0].score)
        if self.is_done:
            return []
        self._running = [_Beam(each.path, each.score) for each in going_on]
        num_missing = self.num_beams - len(going_on)
        self._running += [_Beam(going_on[0].path, -inf)] * num_missing
        going_on += [going_on[0]] * num_missing
        return [BeamStep(each.parent, each.path.token_id) for each in going_on]

    def best(self, num_outputs: int) -> list[Hypothesis]:
        """The best outputs, the best first; where fewer were found than are asked for, some of them again.

        Before the search is done these are what it would end with now. None at all when no row had a candidate.
        """
        unfinished = [beam for beam in self._running if beam.path is not None and isfinite(beam.score)]
        found = self._finished or [self._hypothesis(beam.path, beam.score) for beam in unfinished]
        return [found[i % len(found)] for i in range(num_outputs)] if found else []

    def _best_candidates(self, rows: ListLike[Candidates]) -> list[_Candidate]:
        """The best continuations of all beams, the best first; of equal ones those of the better beam."""
        candidates = (
            _Candidate(parent, _Path(token_id, logprob, beam.path), beam.score + logprob)
            for parent, (beam, row) in enumerate(zip(self._running, rows, strict=True))
            for token_id, logprob in row
            if isfinite(beam.score + logprob)
        )
        return nlargest(self.num_candidates, candidates, key=lambda each: each.score)

    def _is_stopped(self, candidate: _Candidate) -> bool:
        return candidate.path.token_id in self._stop_token_ids

    def _finish(self, candidates: Iterable[_Candidate]) -> None:
        found = self._finished + [self._hypothesis(each.path, each.score) for each in candidates]
        self._finished = nlargest(self.num_beams, found, key=lambda each: each.score)

    def _is_good_enough(self, best_running: float) -> bool:
        """Whether the running beams need not be looked at any more: they will hardly better what is finished."""
        if len(self._finished) < self.num_beams:
            return False
        return self.early_stopping or self._finished[-1].score >= self._penalized(best_running)

    def _penalized(self, score: float) -> float:
        return score / float(self._num_tokens**self.length_penalty)

    def _hypothesis(self, path: _Path | None, score: float) -> Hypothesis:
        token_ids, logprobs = [], []
        while path is not None:
            token_ids.append(path.token_id)
            logprobs.append(path.logprob)
            path = path.before
        token_ids.reverse()
        logprobs.reverse()
        finish_reason: FinishReason = "stop" if token_ids[-1] in self._stop_token_ids else "length"
        return Hypothesis(token_ids, logprobs, self._penalized(score), finish_reason)
