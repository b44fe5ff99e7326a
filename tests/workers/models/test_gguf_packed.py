"""GGUF files as the CPU kernels compute them, in the form that they are stored in."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from kernels import Weight
from kernels.cpu.library import library
from kernels.cpu.packed import PackedMatrix
from tests.checkpoints import make_checkpoint
from tests.workers.models.gguf_files import write_gguf
from tests.workers.models.paged import PagedModel, load, load_recorded
from workers.models.decoder import Decoder
from workers.models.loader import load_model

pytestmark = pytest.mark.skipif(library() is None, reason="the CPU kernels are not built")
TOKEN_IDS = torch.randint(3, 512, (150,), generator=torch.Generator().manual_seed(5)).tolist()
# Wide enough for the types in blocks of 256 columns.
SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
# As the demo model has them.
MIXED = {
    "[qk]_proj|gate|up": Type.Q5_0,
    r"0.*v_proj|embed": Type.Q8_0,
    "v_proj": Type.Q5_0,
    "o_proj": Type.Q4_K,
    "down|lm_head": Type.Q6_K,
}
FORMATS = {Type.Q8_0: "q8", Type.Q4_0: "q4", Type.Q5_0: "q5", Type.Q4_K: "q4_k", Type.Q6_K: "q6_k"}
IN_FLOATS = [Type.F32, Type.F16, Type.BF16, Type.Q4_1]  # the last has no kernel


def make_gguf(
    directory: Path, architecture: str = "llama", *, overrides: dict[str, Any] | None = None, **how: Any
) -> Path:
    checkpoint = make_checkpoint(directory / "model", architecture, **SHAPE | (overrides or {}))
    return write_gguf(checkpoint, directory / "model.gguf", **how)


def error_of(path: Path, packing: str = "bf16") -> float:
    """Of the logits, in parts of their variance."""
    [exact] = PagedModel(load(path)).step({0: TOKEN_IDS})
    [ours] = PagedModel(load_recorded(path, packing)).step({0: TOKEN_IDS})
    return float((ours - exact).square().mean() / exact.var())


def packed(path: Path, packing: str = "bf16") -> Decoder:
    return load_model(path, cache_dir=path.parent / "cache", dtype=torch.bfloat16, device="cpu", packing=packing)


def formats(weight: Weight) -> list[str]:
    assert not isinstance(weight, torch.Tensor)
    return [part.format for part in ((weight,) if isinstance(weight, PackedMatrix) else weight)]


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_are_repacked_and_nothing_is_dequantized_on_the_disk(kind: Type, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, quantization=kind)
    model = packed(path)
    for weight in (model.embed_tokens, model.lm_head, model.layers[1].attention.qkv_proj):
        assert formats(weight) == [FORMATS[kind]]
    assert formats(model.layers[0].feed_forward.gate_up_proj) == [FORMATS[kind]]
    assert [file.name for file in (tmp_path / "cache").rglob("*.safetensors")] == ["vectors.safetensors"]
    assert error_of(path) < 2e-3


@pytest.mark.parametrize("kind", IN_FLOATS)
def test_floats_and_types_without_a_kernel_become_bf16(kind: Type, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, quantization=kind)
    assert formats(packed(path).layers[0].attention.qkv_proj) == ["bf16"]
    assert error_of(path) < 2e-3


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_parts_of_one_matrix_may_be_of_several_types(architecture: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, architecture, types=MIXED)
    first, second = (layer.attention.qkv_proj for layer in packed(path).layers[:2])
    assert (formats(first), formats(second)) == (["q5", "q8"], ["q5"])
    assert error_of(path) < 2e-3


def test_parts_that_end_within_a_panel_become_bf16_together(tmp_path: Path) -> None:
    path = make_gguf(
        tmp_path, overrides={"num_key_value_heads": 1}, types=MIXED
    )  # 256 + 32 rows of one type, 32 of another
    first, second = (layer.attention.qkv_proj for layer in packed(path).layers)
    assert (formats(first), formats(second)) == (["bf16"], ["q5"])
    assert error_of(path) < 2e-3


def test_gates_and_what_they_gate_of_two_types_become_bf16(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, types={"gate": Type.Q5_0}, quantization=Type.Q8_0)
    assert formats(packed(path).layers[0].feed_forward.gate_up_proj) == ["bf16"]
    assert error_of(path) < 2e-3


@pytest.mark.parametrize("packing", ["int8", "int4"])
def test_the_setting_quantizes_anew(packing: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, types=MIXED)
    assert formats(packed(path, packing).layers[0].attention.qkv_proj) == [packing]
    assert error_of(path, packing) < {"int8": 3e-3, "int4": 0.1}[packing]


def test_bits_do_not_depend_on_chunks(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, types=MIXED)
    [whole] = [logits.clone() for logits in PagedModel(load_recorded(path)).step({0: TOKEN_IDS})]
    model, rows = PagedModel(load_recorded(path, num_threads=2)), []
    for begin, end in ((0, 1), (1, 18), (18, 114), (114, 150)):
        rows.append(model.step({0: TOKEN_IDS[begin:end]})[0].clone())
    assert torch.equal(torch.cat(rows), whole)
