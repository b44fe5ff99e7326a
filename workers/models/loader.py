"""From a path to a model that computes. What is known before the weights are read is in `card`."""

import logging
from pathlib import Path

import torch

from workers.models.config import read_config, read_json
from workers.models.decoder import Decoder
from workers.models.errors import ModelNotFound
from workers.models.gemma3 import Gemma3Model
from workers.models.gguf import convert_card, convert_weights
from workers.models.llama import LlamaModel
from workers.models.mixtral import MixtralModel
from workers.models.qwen2 import Qwen2Model
from workers.models.qwen3 import Qwen3Model
from workers.models.qwen3_moe import Qwen3MoeModel
from workers.models.weights import Weights

log = logging.getLogger(__name__)

MODELS: dict[str, type[Decoder]] = {
    "llama": LlamaModel,
    "mixtral": MixtralModel,
    "qwen2": Qwen2Model,
    "qwen3": Qwen3Model,
    "qwen3_moe": Qwen3MoeModel,
    "gemma3": Gemma3Model,
}


def load_model(path: Path, *, cache_dir: Path, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """The model at `path`, a checkpoint directory or a GGUF file; the latter is converted into `cache_dir` once."""
    if path.is_file():
        directory = convert_card(path, cache_dir)
        files = convert_weights(path, directory, dtype)
    else:
        directory, files = path, _weight_files(path)
    if not files:
        raise ModelNotFound(f"{directory} has no .safetensors files")
    config = read_config(directory)
    weights = Weights(files, dtype=dtype, device=device)
    model = MODELS[config.family](config, weights)
    weights.close(unused=["lm_head.weight"] if config.is_tied else [])
    log.info("model loaded", extra={"architecture": config.architecture, "dtype": str(dtype)})
    return model


def _weight_files(directory: Path) -> list[Path]:
    """Those that the index names, for a directory may also hold the weights in another layout; else all there are."""
    index = read_json(directory / "model.safetensors.index.json")
    if index:
        return [directory / name for name in sorted(set(index["weight_map"].values()))]
    whole = directory / "model.safetensors"
    return [whole] if whole.exists() else sorted(directory.glob("*.safetensors"))
