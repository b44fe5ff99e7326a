"""Makes int8 checkpoints of those of tests/checkpoints.py, as compressed-tensors stores them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.checkpoints import write_json
from tests.workers.models.int4_files import LINEAR

CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def write_int8(checkpoint: Path, directory: Path) -> tuple[Path, Path]:
    """(the checkpoint quantized, the checkpoint with what that stands for in floats), both in `directory`."""
    quantized, rounded = {}, {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if not LINEAR.search(name):
            quantized[name] = rounded[name] = weight
            continue
        scales = np.abs(weight).max(axis=1, keepdims=True) / 127
        quantized[name] = np.rint(weight / scales).astype(np.int8)
        quantized[f"{name}_scale"] = scales  # [n, 1]
        rounded[name] = quantized[name] * scales
    int8, floats = directory / "int8", directory / "floats"
    for path, weights in ((int8, quantized), (floats, rounded)):
        shutil.copytree(checkpoint, path)
        save_file(weights, path / "model.safetensors")
    config = json.loads((int8 / "config.json").read_text())
    write_json(int8 / "config.json", config | {"quantization_config": CONFIG})
    return int8, floats
