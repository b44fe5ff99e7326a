"""How near a kernel has to come to what is exact."""

import torch

DTYPES = (torch.float32, torch.float16)  # the interpreter rounds bfloat16 towards zero, which no device does


def assert_as_close(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """Of one shape and dtype; our largest distance from `exact`, in fp64, is at most twice PyTorch's."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert ours.isfinite().all()
    least = torch.finfo(ours.dtype).eps / 2 * exact.abs().max()  # PyTorch may be lucky
    assert _distance(ours, exact) <= 2 * _distance(theirs, exact) + least


def _distance(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact.double()).abs().max())
