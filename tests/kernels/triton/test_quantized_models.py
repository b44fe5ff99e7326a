"""Quantized models on a GPU's kernels, all of them together, give the logits that they give on the reference."""

from pathlib import Path

import pytest
import torch

from kernels import operations
from tests.checkpoints import make_checkpoint
from tests.kernels.triton.test_model import run
from tests.workers.models.int4_files import write_int4
from tests.workers.models.int8_files import write_int8
from tests.workers.models.paged import PagedModel
from workers.models.loader import load_model
from workers.models.packings import AS_STORED

STEPS = [{0: list(range(3, 24)), 1: [5, 6, 7]}, {0: [8], 1: list(range(30, 60))}, {0: [7], 1: [9]}]


@pytest.mark.parametrize(
    ("form", "quantization"),
    [("w8a8", AS_STORED), ("gptq", AS_STORED), ("awq", AS_STORED), ("plain", "int8"), ("plain", "int4")],
)
def test_logits_of_a_quantized_model_are_those_of_the_reference(
    form: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path / "plain", "qwen2", hidden_size=128, head_dim=32)
    if form == "w8a8":
        path, _ = write_int8(path, tmp_path)
    elif form != "plain":
        path, _ = write_int4(path, tmp_path, form, group_size=64)
    model = load_model(path, cache_dir=tmp_path / "cache", dtype=torch.float32, device="cpu", quantization=quantization)
    expected = run(PagedModel(model, num_seqs=2), STEPS)
    monkeypatch.setattr(operations, "_is_on_gpu", lambda x: True)
    found = run(PagedModel(model, num_seqs=2), STEPS)
    # An activation half-way between two of int8's steps may be rounded to either.
    assert (found - expected).square().mean() < 1e-5 * expected.var()
