"""The tensors of a checkpoint, by Hugging Face name, in the dtype and on the device they are computed with."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from kernels import Weight
from workers.models.errors import BadCheckpoint

# Stored beside a text model and not part of it.
IGNORED = re.compile(r"rotary_emb\.inv_freq$|vision_tower\.|multi_modal_projector\.|vision_model\.")


class Weights:
    """Read access to safetensors files. Ask for every tensor, then `close`, which refuses those never asked for."""

    def __init__(self, files: Iterable[Path], *, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self._files: dict[str, Any] = {}  # name -> the open file that holds it; written here only
        self._stored_names: dict[str, str] = {}  # name -> name in the file
        self._used: set[str] = set()
        for path in sorted(files):
            file: Any = safe_open(path, framework="pt", device="cpu")
            for stored_name in file.keys():  # noqa: SIM118 - not a mapping
                if not IGNORED.search(stored_name):
                    # Checkpoints that also see images keep the text model under a name of its own.
                    name = stored_name.replace("language_model.model.", "model.").replace("language_model.", "")
                    self._files[name], self._stored_names[name] = file, stored_name

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def matrix(self, *names: str, is_gated: bool = False) -> Weight:
        """The tensors' rows one below the other, in the compute dtype: [sum of rows, columns].

        `is_gated` says that they are gates and what they gate, for `kernels.gated_linear`.
        """
        return self.joined(*names).to(self.device)

    def plain(self, *names: str) -> torch.Tensor:
        """The same for kernels that take no packed weights, or of biases."""
        return self.joined(*names).to(self.device)

    def joined(self, *names: str) -> torch.Tensor:
        """The same, where they were read."""
        return torch.cat([self._floats(name) for name in names])

    def int8(self, *names: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The rows as the checkpoint has them, int8 with a scale fp32 for each; None when it has floats."""
        if any(f"{name}_scale" not in self for name in names):
            return None
        scales = [self._read(f"{name}_scale").float().flatten() for name in names]
        return torch.cat([self._read(name) for name in names]), torch.cat(scales)

    def _floats(self, name: str) -> torch.Tensor:
        quantized = self.int8(name)
        if quantized is None:
            return self._read(name).to(self.dtype)
        rows, scales = quantized
        return (rows.float() * scales[:, None]).to(self.dtype)

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        """A norm's multipliers in fp32, `offset` added to what is stored."""
        return (self._read(name).float() + offset).to(self.device)

    def close(self, *, unused: Iterable[str] = ()) -> None:
        """Let the files go; BadCheckpoint when a tensor outside `unused` was never asked for."""
        left = set(self._files) - self._used - set(unused)
        self._files.clear()
        if left:
            raise BadCheckpoint(f"{len(left)} tensors that this architecture does not use, such as {min(left)}")

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise BadCheckpoint(f"no tensor {name}")
        self._used.add(name)
        tensor: torch.Tensor = self._files[name].get_tensor(self._stored_names[name])
        return tensor
