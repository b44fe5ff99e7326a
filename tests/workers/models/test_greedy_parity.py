"""The engine's greedy text is transformers' greedy text, token for token, alone and among others."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from kernels import attention_block_size
from tests.workers.models.cases import make_case
from tests.workers.models.paged import load
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.runner import ModelRunner
from workers.engine.sequence import SamplingParams, Sequence

NUM_OUTPUT_TOKENS = 200
CASES = [
    "llama",
    "llama, llama3 rope",
    "mistral, sliding window",
    "mixtral, no sliding window",
    "mixtral, sliding window",
    "qwen2, yarn rope",
    "qwen3, upper layers sliding",
    "qwen3_moe",
    "gemma3, linear rope in the full layers",
]
# From one token to more than two steps' budget, so that chunks and decodes share steps.
PROMPTS = [random.Random(length).choices(range(3, 512), k=length) for length in (1, 5, 17, 40, 64, 90, 131, 200)]


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_case(tmp_path_factory.mktemp("greedy") / "model", request.param)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> ModelRunner:
    return ModelRunner(load(checkpoint), CONFIG, device="cpu", dtype=torch.float32)


CONFIG = EngineConfig(
    max_num_seqs=8,
    token_budget=96,
    max_model_len=512,
    block_size=attention_block_size("cpu"),
    num_blocks=8 * 32,
    vocab_size=512,
    eos_token_ids=frozenset({0}),
    aging_threshold_seconds=30.0,
    aging_boost=0.5,
)


def generate(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy output of every prompt, all of them in the engine at once."""
    engine = Engine(CONFIG, runner)
    params = SamplingParams(max_tokens=NUM_OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    sequences = [Sequence(str(i), prompt, params, tier=1, arrival=float(i)) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        assert engine.add(sequence) is None
    while engine.has_work:
        engine.step()
    return [sequence.output_ids for sequence in sequences]


@torch.inference_mode()
def greedy_choices(reference: PreTrainedModel, prompt: list[int], output: list[int]) -> list[int]:
    """What transformers would choose at each place of `output`, given what stands before it.

    When this is `output` itself, then by induction it is what transformers generates from the prompt.
    """
    logits = reference(torch.tensor([prompt + output[:-1]])).logits[0]
    choices: list[int] = logits[len(prompt) - 1 :].argmax(-1).tolist()
    return choices


def test_greedy_text_alone_and_in_a_mixed_batch_is_that_of_transformers(
    runner: ModelRunner, reference: PreTrainedModel
) -> None:
    batched = generate(runner, PROMPTS)
    for prompt, output in zip(PROMPTS, batched, strict=True):
        assert len(output) == NUM_OUTPUT_TOKENS
        assert output == greedy_choices(reference, prompt, output)
    assert [generate(runner, [prompt])[0] for prompt in PROMPTS] == batched
