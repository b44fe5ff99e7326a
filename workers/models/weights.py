"""The tensors of a checkpoint, by Hugging Face name, in the dtype and on the device they are computed with."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

from kernels import Weight
from workers.models.errors import BadCheckpoint
from workers.models.stored import StoredWeight, in_floats


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

    def matrix(self, *names: str, is_gated: bool = False, is_exact: bool = False) -> Weight:
        """The tensors' rows one below the other, in the compute dtype: [sum of rows, columns].

        `is_gated` says that they are gates and what they gate, for `kernels.gated_linear`; `is_exact` that they are
        not to be quantized when they are not stored so.
        """
        return self.plain(*names)

    def experts(self, num_experts: int, *names: str, is_gated: bool = False) -> Weight:
        """For `kernels.moe_feed_forward`, the `matrix` of each expert, whose number stands for the * in the names.

        A name without one is of a tensor of all of them, [num_experts, rows, columns].
        """
        each = self._read_experts(num_experts, names)
        return torch.stack([self._floats(weights) for weights in each])

    def table(self, name: str) -> Weight:
        """A matrix whose rows are looked up by number, and which a linear layer may share: [rows, columns]."""
        return self.matrix(name)

    def plain(self, *names: str) -> torch.Tensor:
        """The same for kernels that take no packed weights, or of biases."""
        return self._floats(self._read(name) for name in names)

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        """A norm's multipliers in fp32, `offset` added to what is stored."""
        return (self._read(name).floats().float() + offset).to(self.device)

    def refuse_unread(self, *, unused: Iterable[str] = ()) -> None:
        """BadCheckpoint when a weight outside `unused` was never asked for."""
        left = self._unread - set(unused)
        if left:
            raise BadCheckpoint(f"{len(left)} tensors that this architecture does not use, such as {min(left)}")

    def _read_experts(self, num_experts: int, names: Sequence[str]) -> Iterator[list[StoredWeight]]:
        """One expert after the other, the weights of these names."""
        if any("*" in name for name in names):
            for expert in range(num_experts):
                yield [self._read(name.replace("*", str(expert))) for name in names]
            return
        stacked = [self._read(name).floats() for name in names]
        if any(len(tensor) != num_experts for tensor in stacked):
            raise BadCheckpoint(f"{', '.join(names)}: not of {num_experts} experts, which the config has")
        for tensors in zip(*stacked, strict=True):
            yield [in_floats(tensor) for tensor in tensors]

    def _floats(self, weights: Iterable[StoredWeight]) -> torch.Tensor:
        return torch.cat([weight.floats().to(self.dtype) for weight in weights]).to(self.device)

    def _read(self, name: str) -> StoredWeight:
        if name not in self._names:
            raise BadCheckpoint(f"no tensor {name}")
        self._unread.discard(name)
        return self._checkpoint.read(name)
