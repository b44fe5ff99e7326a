"""K and V in int8, as the reference writes and reads them."""

import pytest
import torch

from kernels import make_kv_cache, reference
from kernels.attention import head_dim_of, head_width
from kernels.int8_kv import dequantize, quantize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_read_is_within_half_a_step_of_what_was_written(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed = quantize(x)
    assert packed.dtype == torch.int8 and packed.shape == (5, 3, head_width(30, torch.int8))
    step = x.float().abs().amax(-1, keepdim=True) / 127
    assert ((dequantize(packed) - x.float()).abs() <= 0.501 * step).all()


def test_the_largest_value_of_a_head_is_kept_and_zeros_stay_zeros() -> None:
    x = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1e-40, 0.0, 0.0, 0.0], [-8.0, 4.0, 0.0, 1e-3]])
    assert dequantize(quantize(x)).tolist()[:2] == [[0.0] * 4] * 2
    assert dequantize(quantize(x))[2].tolist() == pytest.approx([-8.0, 4.03, 0.0, 0.0], abs=1e-2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_spoils_its_own_head_alone(value: float) -> None:
    x = torch.ones(3, 2, 8)
    x[1, 0, 3] = value
    read = dequantize(quantize(x))
    assert not read[1, 0].isfinite().any()
    read[1, 0] = 1.0
    assert torch.equal(read, torch.ones(3, 2, 8))


def test_a_token_is_quantized_alone() -> None:
    x = torch.randn(7, 2, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(quantize(x), torch.cat([quantize(token[None]) for token in x]))


def test_a_block_of_the_cache_has_its_scales_beside_its_values() -> None:
    shape = {"num_blocks": 4, "num_layers": 2, "block_size": 2, "num_kv_heads": 3, "head_dim": 16}
    cache = make_kv_cache(**shape, dtype=torch.int8, device="cpu")
    assert head_dim_of(cache) == 16 and cache[0].nbytes == 2 * 2 * 2 * 3 * (16 + 4)
    k, v = torch.randn(2, 3, 3, 16, generator=torch.Generator().manual_seed(2))
    reference.store_kv(k, v, cache[:, 1], torch.tensor([2, 3, 6]))
    cache[0] = cache[3]  # as blocks are copied
    assert torch.equal(dequantize(cache[0, 1, 0, 0]), dequantize(quantize(k[2])))
    assert torch.equal(dequantize(cache[1, 1, 1]), dequantize(quantize(v[:2])))
