"""Makes int4 checkpoints of those of tests/checkpoints.py, packed as the tools of GPTQ and AWQ do it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.checkpoints import write_json

LINEAR = re.compile(r"(self_attn|mlp)\.\w+_proj\.weight$")
BITS, PER_WORD, LARGEST = 4, 8, 15
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the columns, from the lowest bits up
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "desc_act": False, "checkpoint_format": "gptq"},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "desc_act": False, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"},
}


def write_int4(
    checkpoint: Path, directory: Path, layout: str, *, group_size: int, is_symmetric: bool = False
) -> tuple[Path, Path]:
    """(the checkpoint quantized, the checkpoint with what that stands for in floats), both in `directory`."""
    quantized, rounded = {}, {}
    weights = load_file(checkpoint / "model.safetensors")
    for name, weight in weights.items():
        if not LINEAR.search(name):
            quantized[name] = rounded[name] = weight
            continue
        quants, scales, zeros = round_groups(weight, group_size, is_symmetric=is_symmetric)
        spread = [np.repeat(each, group_size, axis=1) for each in (scales.astype(np.float32), zeros)]
        rounded[name] = spread[0] * (quants - spread[1]).astype(np.float32)
        named = name_int4(name, quants, scales, zeros, layout)
        quantized |= named | {each: weights[each] for each in named if each in weights}  # a bias of its own
    int4, floats = directory / "int4", directory / "floats"
    for path, weights in ((int4, quantized), (floats, rounded)):
        shutil.copytree(checkpoint, path)
        save_file(weights, path / "model.safetensors")
    write_config(int4, layout, group_size=group_size, is_symmetric=is_symmetric)
    return int4, floats


def write_config(checkpoint: Path, layout: str, *, group_size: int, is_symmetric: bool) -> None:
    """Say in its config.json that it is quantized."""
    config = json.loads((checkpoint / "config.json").read_text())
    quantization = CONFIGS[layout] | {"group_size": group_size, "sym": is_symmetric}
    write_json(checkpoint / "config.json", config | {"quantization_config": quantization})


def round_groups(weight: np.ndarray, size: int, *, is_symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(quants [n, k], scales float16 [n, groups], zero points [n, groups]) of weight [n, k]"""
    groups = weight.reshape(len(weight), -1, size)
    low, high = groups.min(axis=2), groups.max(axis=2)
    if is_symmetric:
        scales = (np.maximum(high, -low) / 7).astype(np.float16)
        zeros = np.full(scales.shape, 8, np.int64)
    else:
        scales = ((high - low) / LARGEST).astype(np.float16)
        zeros = np.clip(np.rint(-low / scales), 0, LARGEST).astype(np.int64)
    quants = np.rint(groups / scales[..., None].astype(np.float32)).astype(np.int64) + zeros[..., None]
    return quants.clip(0, LARGEST).reshape(weight.shape), scales, zeros


def name_int4(
    name: str, quants: np.ndarray, scales: np.ndarray, zeros: np.ndarray, layout: str
) -> dict[str, np.ndarray]:
    """The tensors that stand for the weight `name`, from what `round_groups` makes of it."""
    group_size = quants.shape[1] // scales.shape[1]
    tensors = pack_awq(quants, zeros) if layout == "awq" else pack_gptq(quants, zeros, layout, group_size)
    tensors["scales"] = np.ascontiguousarray(scales.T)
    return {name.removesuffix("weight") + part: tensor for part, tensor in tensors.items()}


def pack_gptq(quants: np.ndarray, zeros: np.ndarray, layout: str, group_size: int) -> dict[str, np.ndarray]:
    """qweight [k / 8, n], whose words go down k; qzeros [groups, n / 8], whose words go along n."""
    num_columns = quants.shape[1]
    words = pack_along_last(quants, range(PER_WORD))  # [n, k / 8]
    zero_words = pack_along_last(zeros.T, range(PER_WORD))
    if layout == "gptq":  # as GPTQModel does it: the word less 0x11111111
        zero_words = (zero_words.view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
    return {
        "qweight": np.ascontiguousarray(words.T),
        "qzeros": zero_words,
        "g_idx": np.array([column // group_size for column in range(num_columns)], np.int32),
        "bias": np.zeros(len(quants), np.float16),
    }


def pack_awq(quants: np.ndarray, zeros: np.ndarray) -> dict[str, np.ndarray]:
    """qweight [k, n / 8] and qzeros [groups, n / 8]."""
    return {"qweight": pack_along_last(quants.T, AWQ_ORDER), "qzeros": pack_along_last(zeros.T, AWQ_ORDER)}


def pack_along_last(values: np.ndarray, order: Any) -> np.ndarray:
    """int32 [..., m / 8]: of every 8 values the one of `order[i]` in bits 4 * i and up."""
    words = np.zeros((len(values), values.shape[1] // PER_WORD), np.uint32)
    for i, column in enumerate(order):
        words |= values[:, column::PER_WORD].astype(np.uint32) << np.uint32(BITS * i)
    return words.view(np.int32)
