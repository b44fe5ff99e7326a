"""From a path to a model that computes. What is known before the weights are read is in `card`."""

import logging
from functools import partial
from pathlib import Path

import torch

from workers.models.config import read_config, read_json
from workers.models.decoder import Decoder
from workers.models.device_weights import DeviceWeights
from workers.models.errors import ModelNotFound
from workers.models.gemma3 import Gemma3Model
from workers.models.gguf import convert_card, convert_weights, open_weights
from workers.models.llama import LlamaModel
from workers.models.mixtral import MixtralModel
from workers.models.packed_weights import PackedWeights, name_of, pack_weights
from workers.models.quantization import int4_layout
from workers.models.qwen2 import Qwen2Model
from workers.models.qwen3 import Qwen3Model
from workers.models.qwen3_moe import Qwen3MoeModel
from workers.models.safetensors_files import SafetensorsFiles
from workers.models.weights import Checkpoint, Weights

log = logging.getLogger(__name__)

MODELS: dict[str, type[Decoder]] = {
    "llama": LlamaModel,
    "mixtral": MixtralModel,
    "qwen2": Qwen2Model,
    "qwen3": Qwen3Model,
    "qwen3_moe": Qwen3MoeModel,
    "gemma3": Gemma3Model,
}


def load_model(
    path: Path,
    *,
    cache_dir: Path,
    dtype: torch.dtype,
    device: torch.device | str,
    packing: str | None = None,
    quantization: str | None = None,
) -> Decoder:
    """The model at `path`, a checkpoint directory or a GGUF file.

    With `packing`, one of `workers.models.packings`, its weights are packed for the CPU kernels, into `cache_dir` once:
    for a `RecordedModel`. Without it a GGUF file's are dequantized, into that directory too. `quantization` is for the
    kernels of a GPU, as `DeviceWeights` takes it; without both all weights are floats.
    """
    directory = convert_card(path, cache_dir) if path.is_file() else path
    config = read_config(directory)
    make = partial(MODELS[config.family], config)
    unused = ["lm_head.weight"] if config.is_tied else []
    if packing is None:
        weights = _weights(_checkpoint(path, directory, dtype), quantization, dtype=dtype, device=device)
        model = make(weights)
        weights.refuse_unread(unused=unused)
    else:
        files = [path] if path.is_file() else [directory / "config.json", *_weight_files(directory)]
        open_checkpoint = partial(_checkpoint, path, directory, None)
        target = cache_dir / "packed" / name_of(files, packing)
        packed = pack_weights(target, path, packing, open_checkpoint, make, dtype=dtype, unused=unused)
        model = make(PackedWeights(packed, dtype=dtype))
        model.packed = packed
    log.info("model loaded", extra={"architecture": config.architecture, "dtype": str(dtype)})
    return model


def _weights(
    checkpoint: Checkpoint, quantization: str | None, *, dtype: torch.dtype, device: torch.device | str
) -> Weights:
    if quantization is None:
        return Weights(checkpoint, dtype=dtype, device=device)
    return DeviceWeights(checkpoint, dtype=dtype, device=device, quantization=quantization)


def _checkpoint(path: Path, directory: Path, dtype: torch.dtype | None) -> Checkpoint:
    """The weights as they are stored; those of a GGUF file in `dtype` when it is given."""
    if not path.is_file():
        return SafetensorsFiles(_weight_files(directory), int4_layout(read_json(directory / "config.json")))
    if dtype is None:
        return open_weights(path, directory)
    return SafetensorsFiles(convert_weights(path, directory, dtype))


def _weight_files(directory: Path) -> list[Path]:
    """Those that the index names, for a directory may also hold the weights in another layout; else all there are."""
    index = read_json(directory / "model.safetensors.index.json")
    if index:
        return [directory / name for name in sorted(set(index["weight_map"].values()))]
    whole = directory / "model.safetensors"
    files = [whole] if whole.exists() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelNotFound(f"{directory} has no .safetensors files")
    return files
