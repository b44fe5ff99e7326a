"""How wrong a kernel is, how long it takes, and what the memory gives a plain copy."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from triton.testing import do_bench

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 20}

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One kernel in one shape."""

    name: str
    shape: str
    run: Callable[[], Outputs]  # the kernel
    reference: Callable[[], Outputs]  # PyTorch in the same dtype
    exact: Callable[[], Outputs]  # the same in fp32 or better
    num_bytes: int  # that must be read and written
    timed: Callable[[], object] | None = None  # where `run` does more than the kernel
    slack: float = 0.25  # of the dtype's step at the largest result, beyond twice PyTorch's error


def error_ratio(case: Case) -> float:
    """The largest error of any output over what is allowed; infinite where integers differ or one is not finite."""
    outputs = zip(case.run(), case.reference(), case.exact(), strict=True)
    return max(_ratio(ours, theirs, exact, case.slack) for ours, theirs, exact in outputs)


def _ratio(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, slack: float) -> float:
    if not ours.is_floating_point():
        return 0.0 if torch.equal(ours, exact) else torch.inf
    if not ours.isfinite().all():
        return torch.inf
    allowed = 2 * _distance(theirs, exact) + slack * torch.finfo(ours.dtype).eps * float(exact.abs().max())
    return _distance(ours, exact) / allowed


def _distance(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact.double()).abs().max())


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Median of a call on a GPU whose L2 cache is cleared before each; on a CPU one call's."""
    if device == "cuda":
        return float(do_bench(run, warmup=50, rep=200, return_mode="median")) / 1e3
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def copy_bandwidth(device: str) -> float:
    """Bytes read and written in a second by a copy within the device's memory."""
    source = torch.zeros(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / seconds_of(lambda: target.copy_(source), device)
