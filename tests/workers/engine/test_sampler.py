"""One sample per row, a function of that row alone."""

from typing import Any

import pytest
import torch

from tests.workers.engine.fakes import make_sequence
from tests.workers.engine.rows import EOS, VOCAB_SIZE, OnlyThese, draw_rows, make_row, sample_rows, token_of
from workers.engine.sampler import prompt_logprobs, sample
from workers.engine.sequence import Sequence


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


@pytest.mark.parametrize("limits", [{"seed": None}, {"top_p": "much"}, {"temperature": "hot"}])
def test_a_row_that_cannot_be_drawn_fails_alone(limits: dict[str, Any]) -> None:
    rows = [make_row(index) for index in (0, 1, 2, 3, 4)]
    rows[2][1].params.__dict__.update(limits)
    samples = draw_rows(torch.stack([logits for logits, _ in rows]), [sequence for _, sequence in rows])
    assert "no token could be chosen" in (samples.pop(2).error or "")
    assert samples == sample_rows([0, 1, 3, 4])
