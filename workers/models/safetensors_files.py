"""A checkpoint in safetensors files, whose matrices are floats, int8 rows or int4 groups."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from workers.models.int4_layouts import INT4_LAYOUTS, INT4_TENSORS, QUANTS
from workers.models.stored import StoredWeight, in_floats

# Stored beside a text model and not part of it.
IGNORED = re.compile(r"rotary_emb\.inv_freq$|vision_tower\.|multi_modal_projector\.|vision_model\.")


class SafetensorsFiles:
    """Read access to the weights by their names in the text model."""

    def __init__(self, files: Iterable[Path], int4_layout: str | None = None) -> None:
        """`int4_layout` is a key of INT4_LAYOUTS, for a checkpoint with such matrices."""
        self._layout = int4_layout
        self._files: dict[str, Any] = {}  # name of a tensor -> the open file that holds it; written here only
        self._stored_names: dict[str, str] = {}  # name -> name in the file
        for path in sorted(files):
            file: Any = safe_open(path, framework="pt", device="cpu")
            for stored_name in file.keys():  # noqa: SIM118 - not a mapping
                if not IGNORED.search(stored_name):
                    # Checkpoints that also see images keep the text model under a name of its own.
                    name = stored_name.replace("language_model.model.", "model.").replace("language_model.", "")
                    self._files[name], self._stored_names[name] = file, stored_name

    def names(self) -> set[str]:
        return {name for tensor in self._files if (name := self._weight_of(tensor))}

    def size(self, name: str) -> int:
        return sum(tensor.nbytes for tensor in self._tensors(name).values())

    def read(self, name: str) -> StoredWeight:
        tensors = self._tensors(name)
        if QUANTS in tensors:
            assert self._layout is not None, "the config names the layout of quantized weights"
            return INT4_LAYOUTS[self._layout](name, tensors)
        if f"{name}_scale" in tensors:
            return StoredWeight("int8", (tensors[name], tensors[f"{name}_scale"].float().flatten()))
        return in_floats(tensors[name])

    def _tensors(self, name: str) -> dict[str, torch.Tensor]:
        """What a weight is stored in: itself and its scales, or its parts by their own names."""
        if name in self._files:
            return {each: self._tensor(each) for each in (name, f"{name}_scale") if each in self._files}
        stem = name.removesuffix("weight")
        return {part: self._tensor(stem + part) for part in INT4_TENSORS if stem + part in self._files}

    def _weight_of(self, tensor: str) -> str | None:
        """The weight that a tensor is of, at the one tensor that tells of it."""
        stem, _, part = tensor.rpartition(".")
        if part == QUANTS:
            return f"{stem}.weight"
        is_int4 = part in INT4_TENSORS and f"{stem}.{QUANTS}" in self._files
        if part == "bias" and f"{stem}.{QUANTS}" in self._files and not self._tensor(tensor).any():
            return None  # GPTQ's tools write zeros where a layer has no bias
        is_scale = tensor.endswith("_scale") and tensor.removesuffix("_scale") in self._files
        return None if is_int4 or is_scale else tensor

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(self._stored_names[name])
        return tensor
