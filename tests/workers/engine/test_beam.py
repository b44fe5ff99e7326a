"""Beam search finds what transformers finds, and does by hand what one can check by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.checkpoints import make_checkpoint
from workers.engine.beam import BeamSearch, BeamStep, Hypothesis

NUM_PROMPT_TOKENS = 6
MAX_TOKENS = 10
STOPS = [7, 130, 256, 400]
ENDLESS: list[int] = []


@pytest.fixture(scope="module", params=[0, 1])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    path = make_checkpoint(Path(tmp_path_factory.mktemp("beam")) / "model", seed=request.param)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def prompt_of(seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (NUM_PROMPT_TOKENS,), generator=generator).tolist()


@torch.inference_mode()
def search(model: PreTrainedModel, prompt: list[int], beams: BeamSearch, num_outputs: int) -> list[Hypothesis]:
    """Drive a search with the model's logits, each beam computed anew from its tokens."""
    outputs: list[list[int]] = [[]]
    while not beams.is_done:
        logits = model(torch.tensor([prompt + output for output in outputs])).logits[:, -1]
        likeliest = torch.log_softmax(logits.float(), dim=-1).topk(beams.num_candidates)
        rows = [
            list(zip(ids, logprobs, strict=True))
            for ids, logprobs in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ]
        outputs = [[*outputs[step.parent], step.token_id] for step in beams.advance(rows)]
    return beams.best(num_outputs)


def reference(model: PreTrainedModel, prompt: list[int], **options: Any) -> tuple[list[list[int]], list[float]]:
    """What transformers returns: the outputs without what pads them, and their scores."""
    stops = options.pop("stops")
    found = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        eos_token_id=stops or None,
        pad_token_id=511,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    outputs = []
    for row in found.sequences[:, NUM_PROMPT_TOKENS:].tolist():
        stopped = [i for i, token_id in enumerate(row) if token_id in stops]
        outputs.append(row[: stopped[0] + 1] if stopped else row)
    return outputs, found.sequences_scores.tolist()


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(("num_beams", "num_outputs", "early_stopping"), [(2, 1, False), (4, 3, False), (4, 3, True)])
def test_a_search_finds_what_transformers_finds(
    model: PreTrainedModel, num_beams: int, num_outputs: int, early_stopping: bool, length_penalty: float
) -> None:
    reached = set()
    prompt = prompt_of(7)
    first = greedy_stop(model, prompt)
    for stops in (ENDLESS, [first], [first, *STOPS]):
        beams = BeamSearch(
            num_beams,
            max_tokens=MAX_TOKENS,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            stop_token_ids=stops,
        )
        best = search(model, prompt, beams, num_outputs)
        expected, scores = reference(
            model,
            prompt,
            stops=stops,
            num_beams=num_beams,
            num_return_sequences=num_outputs,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        assert [each.token_ids for each in best] == expected
        assert [each.score for each in best] == pytest.approx(scores, rel=1e-4)
        assert all(each.finish_reason == ("stop" if each.token_ids[-1] in stops else "length") for each in best)
        reached |= {each.finish_reason for each in best if stops}
    assert "stop" in reached or length_penalty > 0, "the shorter output has the better sum of log probabilities"


def greedy_stop(model: PreTrainedModel, prompt: list[int]) -> int:
    """The third token of the greedy output: as a stop token it is reached early."""
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False, eos_token_id=None)
    return int(output[0, -1])


def test_the_beams_of_a_step_come_from_the_best_of_all_candidates() -> None:
    beams = BeamSearch(2, max_tokens=3)
    assert beams.advance([[(1, -0.1), (2, -0.5), (3, -2.0)]]) == [BeamStep(0, 1), BeamStep(0, 2)]
    steps = beams.advance([[(4, -3.0), (5, -4.0)], [(6, -0.1), (7, -0.2)]])
    assert steps == [BeamStep(1, 6), BeamStep(1, 7)]
    assert beams.advance([[(8, -1.0), (9, -9.0)], [(8, -0.1), (9, -9.0)]]) == []
    assert beams.is_done
    assert [(each.token_ids, each.finish_reason) for each in beams.best(2)] == [
        ([2, 7, 8], "length"),
        ([2, 6, 8], "length"),
    ]
    assert beams.best(1)[0].logprobs == [-0.5, -0.2, -0.1]


def test_a_stop_token_ends_an_output_and_its_place_goes_to_the_next_candidate() -> None:
    beams = BeamSearch(2, max_tokens=8, stop_token_ids=[0], early_stopping=True)
    assert beams.advance([[(0, -0.1), (1, -0.5), (2, -1.0), (3, -4.0)]]) == [BeamStep(0, 1), BeamStep(0, 2)]
    assert beams.advance([[(0, -0.1), (5, -9.0)], [(6, -9.0), (7, -9.5)]]) == []
    assert [(each.token_ids, each.finish_reason) for each in beams.best(2)] == [([0], "stop"), ([1, 0], "stop")]


def test_a_stop_token_beyond_the_best_ends_nothing() -> None:
    beams = BeamSearch(2, max_tokens=2, stop_token_ids=[0])
    assert beams.advance([[(1, -0.1), (2, -0.5), (0, -1.0), (3, -4.0)]]) == [BeamStep(0, 1), BeamStep(0, 2)]
    assert beams.advance([[(4, -1.0)], [(4, -1.0)]]) == []
    assert [each.token_ids for each in beams.best(2)] == [[1, 4], [2, 4]]


def test_where_candidates_are_few_copies_fill_up_and_come_to_nothing() -> None:
    beams = BeamSearch(3, max_tokens=2)
    forbidden = float("-inf")
    assert beams.advance([[(1, -0.5), (2, forbidden), (3, forbidden)]]) == [BeamStep(0, 1)] * 3
    assert beams.advance([[(4, -0.1), (5, -0.3)]] * 3) == []
    assert [each.token_ids for each in beams.best(3)] == [[1, 4], [1, 5], [1, 4]]


def test_a_search_without_any_candidate_is_done_and_has_found_nothing() -> None:
    beams = BeamSearch(2, max_tokens=4)
    assert beams.advance([[(1, float("nan"))]]) == []
    assert beams.is_done
    assert beams.best(2) == []
