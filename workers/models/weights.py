"""The tensors of a checkpoint, by Hugging Face name, in the dtype and on the device they are computed with."""

from collections.abc import Iterable
from typing import Protocol

import torch

from kernels import Weight
from workers.models.errors import BadCheckpoint
from workers.models.stored import StoredWeight


class Checkpoint(Protocol):
    """The files that a model's weights are read from."""

    def names(self) -> set[str]:
        """Of all weights: `model.layers.3.mlp.up_proj.weight`, in however many tensors it is stored."""
        ...

    def size(self, name: str) -> int:
        """Bytes that one of these takes in the files."""
        ...

    def read(self, name: str) -> StoredWeight:
        """One of these."""
        ...


class Weights:
    """A model asks for every weight, and then `refuse_unread` refuses those never asked for."""

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self._checkpoint = checkpoint
        self._names = checkpoint.names()
        self._unread = set(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def matrix(self, *names: str, is_gated: bool = False) -> Weight:
        """The tensors' rows one below the other, in the compute dtype: [sum of rows, columns].

        `is_gated` says that they are gates and what they gate, for `kernels.gated_linear`.
        """
        return self.plain(*names)

    def plain(self, *names: str) -> torch.Tensor:
        """The same for kernels that take no packed weights, or of biases."""
        return torch.cat([self._read(name).floats().to(self.dtype) for name in names]).to(self.device)

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        """A norm's multipliers in fp32, `offset` added to what is stored."""
        return (self._read(name).floats().float() + offset).to(self.device)

    def refuse_unread(self, *, unused: Iterable[str] = ()) -> None:
        """BadCheckpoint when a weight outside `unused` was never asked for."""
        left = self._unread - set(unused)
        if left:
            raise BadCheckpoint(f"{len(left)} tensors that this architecture does not use, such as {min(left)}")

    def _read(self, name: str) -> StoredWeight:
        if name not in self._names:
            raise BadCheckpoint(f"no tensor {name}")
        self._unread.discard(name)
        return self._checkpoint.read(name)
