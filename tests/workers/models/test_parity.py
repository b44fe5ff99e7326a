"""Every architecture against transformers, on tiny random checkpoints in fp32."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.models.cases import CASES, make_case
from tests.workers.models.paged import PagedModel, load
from workers.models.decoder import Decoder

TOLERANCE = 1e-4


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_case(tmp_path_factory.mktemp("parity") / "model", request.param)


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return random.Random(0).choices(range(3, 512), k=200)


@pytest.fixture(scope="module")
def expected(case: Path, token_ids: list[int]) -> torch.Tensor:
    """transformers' logits [200, vocab_size]."""
    reference = AutoModelForCausalLM.from_pretrained(case, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(scope="module")
def model(case: Path, dtype: torch.dtype) -> Decoder:
    return load(case, dtype)


def test_logits_are_those_of_transformers(case: Path, token_ids: list[int], expected: torch.Tensor) -> None:
    (logits,) = PagedModel(load(case)).step({0: token_ids})
    assert (logits - expected).abs().max() < TOLERANCE


def test_chunks_and_decode_steps_give_the_bits_of_one_prefill(model: Decoder, token_ids: list[int]) -> None:
    (whole,) = PagedModel(model).step({0: token_ids})
    paged = PagedModel(model)
    chunks = [token_ids[:1], token_ids[1:70], token_ids[70:73], token_ids[73:150]]
    decodes = [[token_id] for token_id in token_ids[150:]]
    assert torch.equal(torch.cat([paged.step({0: run})[0] for run in chunks + decodes]), whole)


def test_neighbours_do_not_change_a_bit(model: Decoder, token_ids: list[int]) -> None:
    prompt = token_ids[:67]
    alone = PagedModel(model)
    together = PagedModel(model, num_seqs=8)
    together.step({seq: token_ids[seq : 20 * seq + 10] for seq in (0, 1, 2, 4, 7)})
    prefilled = together.step({0: [9], 5: token_ids[:110], 3: prompt, 7: [8], 6: token_ids[:5]})[2]
    decoded = together.step({seq: [seq + 5] for seq in range(8)})[3]
    assert torch.equal(alone.step({0: prompt})[0], prefilled)
    assert torch.equal(alone.step({0: [8]})[0], decoded)


def test_bfloat16_stays_near_float32(case: Path, token_ids: list[int], expected: torch.Tensor) -> None:
    reference = AutoModelForCausalLM.from_pretrained(case, dtype=torch.bfloat16, attn_implementation="eager")
    with torch.inference_mode():
        theirs = reference(torch.tensor([token_ids])).logits[0].float()
    (ours,) = PagedModel(load(case, torch.bfloat16)).step({0: token_ids})
    assert (ours - expected).abs().mean() <= 2 * (theirs - expected).abs().mean()
