"""From a path to a model that computes. What is known before the weights are read is in `card`."""

import logging
from functools import partial
from pathlib import Path

import torch

from kernels.cpu.pack_grouped import quantize_int4
from kernels.cpu.pack_int8 import pack_int8, quantize_int8
from kernels.cpu.packed import PackedMatrix, pack_bf16
from workers.models.config import read_config, read_json
from workers.models.decoder import Decoder
from workers.models.errors import ModelNotFound
from workers.models.gemma3 import Gemma3Model
from workers.models.gguf import convert_card, convert_weights
from workers.models.llama import LlamaModel
from workers.models.mixtral import MixtralModel
from workers.models.packed_weights import Pack, PackedWeights, name_of, pack_weights
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


def _quantize_int8(weight: torch.Tensor, *, is_gated: bool) -> PackedMatrix:
    return pack_int8(*quantize_int8(weight), is_gated=is_gated)


PACKINGS: dict[str, Pack] = {"bf16": pack_bf16, "int8": _quantize_int8, "int4": quantize_int4}


def load_model(
    path: Path, *, cache_dir: Path, dtype: torch.dtype, device: torch.device | str, packing: str | None = None
) -> Decoder:
    """The model at `path`, a checkpoint directory or a GGUF file; the latter is converted into `cache_dir` once.

    `packing` (bf16, int8) packs its weights for the CPU kernels, in that directory too: for a `RecordedModel`.
    """
    if path.is_file():
        directory = convert_card(path, cache_dir)
        files = convert_weights(path, directory, dtype)
    else:
        directory, files = path, _weight_files(path)
    if not files:
        raise ModelNotFound(f"{directory} has no .safetensors files")
    config = read_config(directory)
    make = partial(MODELS[config.family], config)
    if packing is None:
        weights = Weights(files, dtype=dtype, device=device)
    else:
        target = cache_dir / "packed" / name_of(files, packing)
        packed = pack_weights(files, target, PACKINGS[packing], make, dtype=dtype)
        weights = PackedWeights(files, packed, dtype=dtype)
    model = make(weights)
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
