"""One sample per row, a function of that row alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tests.workers.engine.fakes import make_sequence
from workers.engine.outputs import Sample
from workers.engine.sampler import prompt_logprobs, sample
from workers.engine.sequence import Sequence

VOCAB_SIZE = 3001
EOS = frozenset({2, 77})


@dataclass
class OnlyThese:
    """A grammar of one place: the token ids that may come, or an exception."""

    token_ids: set[int]
    error: Exception | None = None
    is_finished: bool = False

    def mask(self) -> bytes:
        if self.error is not None:
            raise self.error
        bits = sum(1 << token_id for token_id in self.token_ids)
        return bits.to_bytes(max(self.token_ids) // 8 + 1, "little")

    def accept(self, token_id: int) -> None:
        raise AssertionError("the sampler only asks")

    def fork(self) -> "OnlyThese":
        return self


def make_row(index: int) -> tuple[torch.Tensor, Sequence]:
    """A row of one of many kinds, with its own logits, tokens and seed."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 5},
        {"repetition_penalty": 1.2, "logprobs": 0},
        {"temperature": 2.0, "top_p": 0.999999, "frequency_penalty": 0.3},
        {"temperature": 1.0, "top_k": 2000, "top_p": 0.95, "min_p": 0.001, "presence_penalty": 1.0},
        {"temperature": 1.0, "logit_bias": {5: 9.0, 6: 9.5, VOCAB_SIZE + 5: 100.0}},
        {"min_tokens": 9, "stop_token_ids": frozenset({4}), "logprobs": 2},
        {"temperature": 1.0, "bad_words": ((7,), (2000, 8), (3, 2000, 9))},
        {"num_beams": 3, "logit_bias": {1: 2.0}, "repetition_penalty": 1.3},
        {"temperature": 1.0, "grammar": OnlyThese({3, 900, 2999})},
        {"temperature": 0.8, "top_p": 0.9, "grammar": OnlyThese(set(range(50, 90))), "min_tokens": 30, "logprobs": 1},
    )
    kind = dict(kinds[index % len(kinds)])
    grammar = kind.pop("grammar", None)
    logits = 4 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(index))
    sequence = make_sequence(f"s{index}", 7, output_ids=[index, 3, 3, 2000], seed=index - 4, **kind)
    sequence.grammar = grammar
    return logits, sequence


def sample_rows(indices: list[int]) -> list[Sample]:
    rows = [make_row(index) for index in indices]
    return draw_rows(torch.stack([logits for logits, _ in rows]), [sequence for _, sequence in rows])


def draw_rows(logits: torch.Tensor, sequences: list[Sequence]) -> list[Sample]:
    return sample(logits, sequences, [sequence.num_output_tokens for sequence in sequences], EOS)


def token_of(logits: torch.Tensor, sequence: Sequence) -> int:
    [drawn] = draw_rows(logits.reshape(1, -1), [sequence])
    assert drawn.error is None
    return drawn.token_id


@pytest.mark.parametrize("num_rows", [2, 3, 17, 42])
def test_a_row_is_bitwise_the_same_alone_and_among_others(num_rows: int) -> None:
    alone = [sample_rows([index])[0] for index in range(num_rows)]
    assert all(each.error is None for each in alone)
    assert sample_rows(list(range(num_rows))) == alone
    assert sample_rows(list(reversed(range(num_rows)))) == alone[::-1]


def test_a_row_is_sampled_from_where_it_is_and_left_as_it_was() -> None:
    rows = [make_row(index) for index in range(14)]
    logits = torch.stack([row for row, _ in rows])
    before = logits.clone()
    draw_rows(logits, [sequence for _, sequence in rows])
    assert torch.equal(logits, before)


def test_temperature_zero_is_argmax_beside_rows_that_sample() -> None:
    samples = sample_rows(list(range(28)))
    for index in (0, 14):
        assert samples[index].token_id == int(make_row(index)[0].argmax())


def test_temperature_zero_takes_the_lowest_id_on_a_tie_whatever_was_done_to_the_row() -> None:
    logits = torch.tensor([1.0, 5.0, 5.0, 5.0, 4.0])
    assert token_of(logits, make_sequence("a", [0])) == 1
    assert token_of(logits, make_sequence("a", [0], logit_bias={4: 1.0, 1: -1.0})) == 2
    assert token_of(logits, make_sequence("a", [0], bad_words=((1,),))) == 2


def test_a_seed_holds_whether_or_not_its_neighbours_have_the_same() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    same = [make_sequence(id, temperature=1.0, seed=11) for id in "abc"]
    first, second, third = draw_rows(logits, same)
    assert first == second == third
    other = [make_sequence("a", temperature=1.0, seed=11), make_sequence("b", temperature=1.0, seed=12)]
    assert draw_rows(logits[:2], other)[0] == first != draw_rows(logits[:2], other)[1]


def test_consecutive_output_indices_draw_independently() -> None:
    logits = torch.zeros(1, 1000)
    sequence = make_sequence("a", temperature=1.0, seed=5)
    drawn = [sample(logits, [sequence], [index])[0].token_id for index in range(200)]
    assert len(set(drawn)) > 150


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    logits, _ = make_row(1)
    assert token_of(1000 * logits, make_sequence("a", temperature=1e-30, top_p=0.9)) == int(logits.argmax())


def test_penalties_count_prompt_and_output_as_defined() -> None:
    logits = torch.tensor([4.0, 3.9, 3.8, -1.0])

    def chosen(**penalties: float) -> int:
        return token_of(logits, make_sequence("a", [0, 3], output_ids=[1, 1], **penalties))

    assert chosen() == 0
    assert chosen(repetition_penalty=1.1) == 2  # 0 is in the prompt, 1 in the output
    assert chosen(presence_penalty=2.0) == 0  # the prompt does not count
    assert chosen(frequency_penalty=-0.06) == 1  # twice -0.06 lifts 3.9 above 4
    assert chosen(presence_penalty=-0.06) == 0  # once does not


def test_a_bias_is_added_before_penalties_and_one_outside_the_vocabulary_changes_nothing() -> None:
    logits = torch.tensor([1.0, 0.0, -2.0])
    assert token_of(logits, make_sequence("a", [0], logit_bias={1: 1.5})) == 1
    assert token_of(logits, make_sequence("a", [0], logit_bias={0: -100.0, 2: 2.5})) == 2
    assert token_of(logits, make_sequence("a", [0], logit_bias={3: 100.0, 2**31 - 1: 100.0})) == 0
    # 1 + 3 halved is 2, and less than 2.5; halved before, it would be 3.5.
    assert token_of(logits, make_sequence("a", [0], logit_bias={0: 3.0, 1: 2.5}, repetition_penalty=2.0)) == 1


@pytest.mark.parametrize(("num_output", "expected"), [(0, 1), (2, 1), (3, 77)])
def test_no_stop_token_comes_before_min_tokens(num_output: int, expected: int) -> None:
    logits = torch.zeros(80)
    logits[[1, 2, 4, 77]] = torch.tensor([5.0, 6.0, 7.0, 8.0])
    options: dict[str, Any] = {"min_tokens": 3, "stop_token_ids": frozenset({4}), "ignore_eos": False}
    for others in ({}, {"logit_bias": {70: 1.0}}):
        assert token_of(logits, make_sequence("a", [0], output_ids=[9] * num_output, **options, **others)) == expected


def test_min_tokens_leaves_an_end_of_sequence_token_that_ends_nothing() -> None:
    logits = torch.zeros(80)
    logits[77] = 8.0
    assert token_of(logits, make_sequence("a", [0], min_tokens=3, ignore_eos=True)) == 77


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ([5], [], 0),  # only 3 is forbidden: no run is under way
        ([5], [8], 1),  # 0 would complete 8, 0
        ([8], [], 1),  # also where it began in the prompt
        ([5], [8, 5], 0),
        ([5, 6], [7], 2),  # 1 would complete 6, 7, 1, and 0 7, 0
    ],
)
def test_a_bad_word_is_never_completed(prompt: list[int], output: list[int], expected: int) -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    words = ((3,), (8, 0), (6, 7, 1), (7, 0), (1, 2, 3, 4, 5, 6, 7, 8, 0))
    assert token_of(logits, make_sequence("a", prompt, output_ids=output, bad_words=words)) == expected


REFERENCES: list[tuple[dict[str, Any], Callable[[], LogitsProcessor]]] = [
    ({"logit_bias": {3: 4.0, 900: -2.5}}, lambda: SequenceBiasLogitsProcessor([[[3], 4.0], [[900], -2.5]])),
    ({"repetition_penalty": 1.7}, lambda: RepetitionPenaltyLogitsProcessor(1.7)),
    (
        {"bad_words": ((7,), (3, 3, 12), (3, 2000, 99))},
        lambda: NoBadWordsLogitsProcessor([[7], [3, 3, 12], [3, 2000, 99]], eos_token_id=[2]),
    ),
    ({"min_tokens": 9, "ignore_eos": False}, lambda: MinNewTokensLengthLogitsProcessor(7, 9, sorted(EOS))),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("fields", "processor"), REFERENCES)
def test_what_transformers_has_too_gives_the_same_candidates(
    fields: dict[str, Any], processor: Callable[[], LogitsProcessor], seed: int
) -> None:
    logits = 4 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
    logits[[2, 7, 12, 77, 99, 900]] += 9.0
    sequence = make_sequence("a", 7, output_ids=[3, 2000, 3, 3], num_beams=20, **fields)
    scores = processor()(torch.tensor([sequence.token_ids]), logits.log_softmax(-1).unsqueeze(0))[0]
    expected = scores.topk(60)
    [drawn] = draw_rows(logits.unsqueeze(0), [sequence])
    num = len(drawn.candidates)
    assert num >= 40
    assert [token_id for token_id, _ in drawn.candidates] == expected.indices[:num].tolist()
    assert [score for _, score in drawn.candidates] == expected.values[:num].tolist()


@pytest.mark.parametrize(
    ("stops", "ignore_eos", "num"), [((), True, 6), ((), False, 9), ((4, 5), False, 15), ((4, 5), True, 9)]
)
def test_a_beam_has_candidates_enough_to_go_on_when_all_stop_tokens_are_among_them(
    stops: tuple[int, ...], ignore_eos: bool, num: int
) -> None:
    logits, _ = make_row(0)
    sequence = make_sequence("a", num_beams=3, stop_token_ids=frozenset(stops), ignore_eos=ignore_eos)
    [drawn] = draw_rows(logits.unsqueeze(0), [sequence])
    assert len(drawn.candidates) == num
    assert drawn.token_id == drawn.candidates[0][0] == int(logits.argmax())


def test_a_beam_is_given_no_candidate_that_is_excluded() -> None:
    logits, _ = make_row(0)
    sequence = make_sequence("a", num_beams=3)
    sequence.grammar = OnlyThese({8, 9})
    [drawn] = draw_rows(logits.unsqueeze(0), [sequence])
    assert {token_id for token_id, _ in drawn.candidates} == {8, 9}


def test_equally_likely_candidates_come_by_their_id() -> None:
    [drawn] = draw_rows(torch.zeros(1, 500), [make_sequence("a", num_beams=2)])
    assert [token_id for token_id, _ in drawn.candidates] == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_only_what_the_grammar_allows_is_drawn(temperature: float) -> None:
    logits, _ = make_row(3)
    allowed = {0, 7, 8, 63, 64, 2048}
    for seed in range(40):
        sequence = make_sequence("a", temperature=temperature, seed=seed)
        sequence.grammar = OnlyThese(allowed)
        assert token_of(logits, sequence) in allowed


def test_a_grammar_of_a_larger_vocabulary_than_the_models_is_cut_off() -> None:
    sequence = make_sequence("a", [0])
    sequence.grammar = OnlyThese({3, 5000})
    assert token_of(torch.zeros(64), sequence) == 3


def failing_rows() -> list[tuple[Sequence, str, str]]:
    """Sequences that cannot go on, with their code and words of the reason."""
    broken, empty = make_sequence("broken"), make_sequence("empty", min_tokens=5, ignore_eos=False)
    broken.grammar = OnlyThese({1}, error=RuntimeError("too complex"))
    empty.grammar = OnlyThese(set(EOS))
    forbidden = make_sequence("forbidden", bad_words=tuple((token_id,) for token_id in range(VOCAB_SIZE)))
    strange = make_sequence("strange", bad_words=((1, None, 2),), output_ids=[])
    strange.params.logit_bias["x"] = 1.0  # type: ignore[index]
    return [
        (broken, "grammar_failed", "too complex"),
        (empty, "grammar_failed", "no token is left"),
        (forbidden, "engine_error", "no token is left"),
        (strange, "engine_error", "no token could be chosen"),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_row_that_cannot_be_sampled_fails_alone_with_its_reason(place: int, num_beams: int) -> None:
    sequence, code, words = failing_rows()[place]
    sequence.params.__dict__["num_beams"] = num_beams
    rows = [make_row(index) for index in range(5)]
    rows.insert(place, (make_row(99)[0], sequence))
    samples = draw_rows(torch.stack([logits for logits, _ in rows]), [each for _, each in rows])
    failed = samples.pop(place)
    assert (failed.token_id, failed.error_code) == (-1, code)
    assert words in (failed.error or "")
    assert samples == sample_rows(list(range(5)))


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    penalised = make_sequence("a", [0], repetition_penalty=10.0, logit_bias={2: -5.0}, temperature=0.0, logprobs=2)
    [drawn] = draw_rows(logits.clone(), [penalised])
    raw = logits[0].log_softmax(-1).tolist()
    assert drawn.logprobs is not None
    assert (drawn.token_id, drawn.logprobs.logprob) == (1, raw[1])
    assert drawn.logprobs.top == ((0, raw[0]), (1, raw[1]))


def test_more_logprobs_than_tokens_give_the_whole_vocabulary() -> None:
    [drawn] = draw_rows(torch.zeros(1, 3), [make_sequence("a", [0], logprobs=20)])
    assert drawn.logprobs is not None and len(drawn.logprobs.top) == 3


def test_prompt_logprobs_say_how_likely_each_token_was_after_those_before_it() -> None:
    logits = torch.stack([make_row(index)[0] for index in range(3)])
    raw = logits.log_softmax(-1)
    told = prompt_logprobs(logits, [5, 0, 3000], 2)
    assert [each.logprob for each in told] == [raw[0, 5].item(), raw[1, 0].item(), raw[2, 3000].item()]
    assert [[id for id, _ in each.top] for each in told] == raw.topk(2).indices.tolist()
    assert prompt_logprobs(logits[1:2], [0], 2) == told[1:2]
    assert prompt_logprobs(logits, [5, 0, 3000], 0)[1].top == ()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("index", [2, 12])
def test_a_row_that_is_not_finite_fails_alone(value: float, index: int) -> None:
    indices = [1, index, 4]
    logits = torch.stack([make_row(each)[0] for each in indices])
    logits[1, 1234] = value  # which the grammar of row 12 excludes
    samples = draw_rows(logits, [make_row(each)[1] for each in indices])
    assert "not finite" in (samples[1].error or "")
    assert [samples[0], samples[2]] == [sample_rows([1])[0], sample_rows([4])[0]]
