"""GGUF files with experts, in each type that the CPU kernels run, against checkpoints with the same weights."""

import re
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, dequantize
from safetensors.numpy import load_file, save_file

from kernels.cpu.library import library
from kernels.cpu.packed import PackedMatrix
from tests.checkpoints import make_checkpoint
from tests.workers.models.gguf_files import write_gguf
from tests.workers.models.paged import PagedModel, load, load_recorded
from workers.models.loader import load_model

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
TOKEN_IDS = torch.randint(3, 512, (150,), generator=torch.Generator().manual_seed(5)).tolist()
ARCHITECTURES = ["mixtral", "qwen3_moe"]
FORMATS = {Type.Q8_0: "q8", Type.Q4_0: "q4", Type.Q5_0: "q5", Type.Q4_K: "q4_k", Type.Q6_K: "q6_k"}
EXPERT = re.compile(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight")
PARTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def make_both(directory: Path, architecture: str, types: dict[str, Type]) -> tuple[Path, Path]:
    """(a GGUF file with experts of these types, a checkpoint with the weights that it has)."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "head_dim": 32}
    checkpoint = make_checkpoint(directory / "model", architecture, **shape)
    path = write_gguf(checkpoint, directory / "model.gguf", types=types)
    stored = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(path).tensors}
    weights = load_file(checkpoint / "model.safetensors")
    for name in weights:
        if found := EXPERT.match(name):
            layer, expert, part = found.groups()
            weights[name] = stored[f"blk.{layer}.ffn_{PARTS[part]}_exps.weight"][int(expert)]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    return path, checkpoint


def formats(path: Path, layer: int = 1) -> tuple[set[str], set[str]]:
    """Of a layer's experts: of their gates and ups, and of their downs."""
    model = load_model(path, cache_dir=path.parent / "cache", dtype=torch.bfloat16, device="cpu", packing="bf16")
    feed_forward = model.layers[layer].feed_forward
    assert isinstance(feed_forward.router, PackedMatrix)
    assert feed_forward.router.format == "bf16"
    return {each.format for each in feed_forward.gate_up_proj}, {each.format for each in feed_forward.down_proj}


def error_of(path: Path, exact: torch.Tensor) -> float:
    """Of the logits that the kernels compute, in parts of the variance of the `exact` ones.

    The median of the rows: where two experts are nearly as likely, a token may get the other.
    """
    [ours] = PagedModel(load_recorded(path)).step({0: TOKEN_IDS})
    return float((ours - exact).square().mean(1).median() / exact.var())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", FORMATS)
def test_experts_run_in_the_type_that_the_file_has_them_in(kind: Type, architecture: str, tmp_path: Path) -> None:
    path, checkpoint = make_both(tmp_path, architecture, {r"\.experts\.": kind})
    assert formats(path) == ({FORMATS[kind]}, {FORMATS[kind]})
    [exact] = PagedModel(load(checkpoint)).step({0: TOKEN_IDS})
    assert torch.equal(PagedModel(load(path)).step({0: TOKEN_IDS})[0], exact)
    assert error_of(path, exact) < 2e-3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_downs_may_be_of_another_type_and_gates_of_another_than_ups_become_bf16(
    architecture: str, tmp_path: Path
) -> None:
    kinds = {r"experts.*down": Type.Q6_K, r"0.*experts.*gate": Type.Q5_0, r"\.experts\.": Type.Q4_K}
    path, checkpoint = make_both(tmp_path, architecture, kinds)
    assert [formats(path, layer) for layer in (0, 1)] == [({"bf16"}, {"q6_k"}), ({"q4_k"}, {"q6_k"})]
    [exact] = PagedModel(load(checkpoint)).step({0: TOKEN_IDS})
    assert error_of(path, exact) < 2e-3
