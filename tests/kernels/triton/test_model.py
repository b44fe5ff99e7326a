"""A model on a GPU's kernels, all of them together, gives the logits that it gives on the reference."""

from pathlib import Path

import pytest
import torch

from kernels import operations
from tests.checkpoints import make_checkpoint
from tests.workers.models.paged import PagedModel, load

TOKEN_IDS = torch.randint(3, 512, (40,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_logits_are_those_of_the_reference(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(make_checkpoint(tmp_path / "model", architecture))
    steps = [{0: TOKEN_IDS[:21], 1: TOKEN_IDS[:3]}, {0: TOKEN_IDS[21:22], 1: TOKEN_IDS[3:30]}, {0: [7], 1: [9]}]
    expected = run(PagedModel(model, num_seqs=2), steps)
    monkeypatch.setattr(operations, "_is_on_gpu", lambda x: True)
    torch.testing.assert_close(run(PagedModel(model, num_seqs=2), steps), expected, rtol=1e-4, atol=1e-4)


def run(model: PagedModel, steps: list[dict[int, list[int]]]) -> torch.Tensor:
    return torch.cat([logits for runs in steps for logits in model.step(runs)])
