"""One sample per row, a function of that row alone."""

import pytest
import torch

from tests.workers.engine.fakes import make_sequence
from workers.engine.outputs import Sample
from workers.engine.sampler import sample
from workers.engine.sequence import Sequence

VOCAB_SIZE = 3001


def make_row(index: int) -> tuple[torch.Tensor, Sequence]:
    """A row of one of eight kinds, with its own logits, tokens and seed."""
    kinds = (
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 40},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 5},
        {"repetition_penalty": 1.2, "logprobs": 0},
        {"temperature": 2.0, "top_p": 0.999999, "frequency_penalty": 0.3},
        {"temperature": 1.0, "top_k": 2000, "top_p": 0.95, "min_p": 0.001, "presence_penalty": 1.0},
    )
    logits = 4 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(index))
    sequence = make_sequence(f"s{index}", 7, output_ids=[index, 3, 3, 2000], seed=index - 4, **kinds[index % 8])
    return logits, sequence


def sample_rows(indices: list[int]) -> list[Sample]:
    rows = [make_row(index) for index in indices]
    return sample(torch.stack([logits for logits, _ in rows]), [sequence for _, sequence in rows])


@pytest.mark.parametrize("num_rows", [2, 3, 17, 32])
def test_a_row_is_bitwise_the_same_alone_and_among_others(num_rows: int) -> None:
    alone = [sample_rows([index])[0] for index in range(num_rows)]
    assert sample_rows(list(range(num_rows))) == alone
    assert sample_rows(list(reversed(range(num_rows)))) == alone[::-1]


def test_temperature_zero_is_argmax_beside_rows_that_sample() -> None:
    samples = sample_rows(list(range(16)))
    for index in (0, 8):
        assert samples[index].token_id == int(make_row(index)[0].argmax())


def test_a_seed_holds_whether_or_not_its_neighbours_have_the_same() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    same = [make_sequence(id, temperature=1.0, seed=11) for id in "abc"]
    first, second, third = sample(logits, same)
    assert first == second == third
    other = [make_sequence("a", temperature=1.0, seed=11), make_sequence("b", temperature=1.0, seed=12)]
    assert sample(logits[:2], other)[0] == first != sample(logits[:2], other)[1]


def test_consecutive_output_indices_draw_independently() -> None:
    logits = torch.zeros(1, 1000)
    drawn = [
        sample(logits, [make_sequence("a", output_ids=[0] * index, temperature=1.0, seed=5)])[0].token_id
        for index in range(200)
    ]
    assert len(set(drawn)) > 150


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    logits, _ = make_row(1)
    [drawn] = sample(1000 * logits.unsqueeze(0), [make_sequence("a", temperature=1e-30, top_p=0.9)])
    assert drawn.token_id == int(logits.argmax())


def test_penalties_count_prompt_and_output_as_defined() -> None:
    logits = torch.tensor([[4.0, 3.9, 3.8, -1.0]])

    def chosen(**penalties: float) -> int:
        return sample(logits.clone(), [make_sequence("a", [0, 3], output_ids=[1, 1], **penalties)])[0].token_id

    assert chosen() == 0
    assert chosen(repetition_penalty=1.1) == 2  # 0 is in the prompt, 1 in the output
    assert chosen(presence_penalty=2.0) == 0  # the prompt does not count
    assert chosen(frequency_penalty=-0.06) == 1  # twice -0.06 lifts 3.9 above 4
    assert chosen(presence_penalty=-0.06) == 0  # once does not


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    penalised = make_sequence("a", [0], repetition_penalty=10.0, temperature=0.0, logprobs=2)
    [drawn] = sample(logits.clone(), [penalised])
    raw = logits[0].log_softmax(-1).tolist()
    assert drawn.logprobs is not None
    assert (drawn.token_id, drawn.logprobs.logprob) == (1, raw[1])
    assert drawn.logprobs.top == ((0, raw[0]), (1, raw[1]))


def test_more_logprobs_than_tokens_give_the_whole_vocabulary() -> None:
    [drawn] = sample(torch.zeros(1, 3), [make_sequence("a", [0], logprobs=20)])
    assert drawn.logprobs is not None and len(drawn.logprobs.top) == 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    logits = torch.stack([make_row(index)[0] for index in (1, 2, 4)])
    logits[1, 1234] = value
    samples = sample(logits, [make_row(index)[1] for index in (1, 2, 4)])
    assert samples[1].error is not None
    assert [samples[0], samples[2]] == [sample_rows([1])[0], sample_rows([4])[0]]
