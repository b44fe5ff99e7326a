"""Rounding to int4 in groups with a scale each."""

import gguf
import torch

from kernels.int4_groups import round_int4

KIND = gguf.GGMLQuantizationType.Q4_0


def rounded(weight: torch.Tensor) -> torch.Tensor:
    quants, scales = round_int4(weight)
    return (quants.float() - 8) * scales.repeat_interleave(32, dim=1)


def test_it_errs_less_than_the_extreme_value_s_scale() -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(7))
    plain = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), KIND), KIND))
    assert (rounded(weight) - weight).norm() < 0.95 * (plain - weight).norm()


def test_groups_of_zeros_stay_zeros() -> None:
    assert not rounded(torch.zeros(2, 64)).any()
