"""GGUF files, converted once into the layout of a Hugging Face checkpoint: first what a card needs, then the weights.

The conversion lives in `<cache_dir>/<name>-<digest>/`: config.json, generation_config.json, tokenizer.json and
tokenizer_config.json, and weights-<dtype>/ for each dtype asked for. The CPU kernels take the weights as the file has
them, see `open_weights`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file

from workers.models.cache import build_once
from workers.models.errors import UnsupportedModel
from workers.models.gguf_config import make_config, make_generation_config, make_tokenizer_config
from workers.models.gguf_tensors import GgufFile, read_floats
from workers.text.gguf_tokenizer import build_tokenizer

log = logging.getLogger(__name__)

LAYOUT = 2  # of the conversion; a new number converts anew
HEADER_BYTES = 1 << 16  # read for the digest
SHARD_BYTES = 1 << 30  # held in memory before they are written


def convert_card(path: Path, cache_dir: Path) -> Path:
    """The directory of a GGUF file's conversion, with everything but the weights in it."""
    digest = _digest(path)

    def build(directory: Path) -> None:
        log.info("reading the GGUF file", extra={"path": str(path)})
        reader = _open(path, digest)
        kv = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        directory.mkdir()
        try:
            _write_json(directory / "config.json", make_config(kv, tensors))
        except KeyError as error:
            raise UnsupportedModel(f"{path} has no {error}") from error
        _write_json(directory / "generation_config.json", make_generation_config(kv))
        _write_json(directory / "tokenizer_config.json", make_tokenizer_config(kv))
        log.info("rebuilding the tokenizer", extra={"path": str(path)})
        build_tokenizer(kv).save(str(directory / "tokenizer.json"))

    return build_once(cache_dir / f"{path.stem}-{digest}", build)


def convert_weights(path: Path, directory: Path, dtype: torch.dtype) -> list[Path]:
    """The safetensors files of a GGUF file's weights, dequantized to `dtype`, in `directory` of `convert_card`."""

    def build(partial: Path) -> None:
        partial.mkdir()
        for number, shard in enumerate(_shards(read_floats(open_weights(path, directory), dtype))):
            save_file(shard, partial / f"{number:05}.safetensors", metadata={"format": "pt"})

    name = f"weights-{str(dtype).removeprefix('torch.')}"
    return sorted(build_once(directory / name, build).glob("*.safetensors"))


def open_weights(path: Path, directory: Path) -> GgufFile:
    """A GGUF file's weights as they are stored; `directory` is that of `convert_card`."""
    reader = _open(path, _digest(path))
    _open.cache_clear()  # the last to need it
    return GgufFile(reader, json.loads((directory / "config.json").read_text()))


def _shards(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in tensors:
        shard[name] = tensor
        num_bytes += tensor.nbytes
        if num_bytes >= SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
    if shard:
        yield shard


@lru_cache(maxsize=1)
def _open(path: Path, digest: str) -> GGUFReader:
    """The file with its metadata parsed: 10 s for a large vocabulary, so card and weights share one reading."""
    return GGUFReader(path)


def _digest(path: Path) -> str:
    """Names the file's content without reading all of it."""
    stat = path.stat()
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    return hashlib.sha256(f"{LAYOUT} {stat.st_size} {stat.st_mtime_ns} ".encode() + header).hexdigest()[:16]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
