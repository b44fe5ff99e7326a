"""Where a model is. Imports nothing heavy, so that a wrong path is known at once."""

import logging
import re
from pathlib import Path

from workers.models.errors import ModelNotFound

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
HUB_DUPLICATES = ["consolidated*", "original/*", "onnx/*"]  # the same weights in other layouts


def resolve(model: str) -> Path:
    """The directory or GGUF file that `model` names: a path, or a hub id, which is downloaded."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelNotFound(f"{model} is a directory without a config.json")
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFound(f"{model} is neither a directory nor a .gguf file")
        return path
    if not HUB_ID.fullmatch(model):
        raise ModelNotFound(f"there is no directory or file {model}, and it is not a hub id such as Qwen/Qwen3-0.6B")
    return _download(model)


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download  # takes a second, and a local model does not need it

    log.info("downloading the model", extra={"model": model})
    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES, ignore_patterns=HUB_DUPLICATES))
    except Exception as error:  # the hub's client raises a dozen kinds, offline ones among them
        raise ModelNotFound(f"{model} is not on this machine, and the model hub did not give it: {error}") from error
