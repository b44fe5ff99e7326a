"""What a sequence asks of its row before a token is chosen, as the tokens show that are chosen then."""

from collections.abc import Callable
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
from tests.workers.engine.rows import EOS, VOCAB_SIZE, OnlyThese, draw_rows, make_row, token_of


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
