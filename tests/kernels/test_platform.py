"""The dtype that `auto` means."""

import pytest
import torch

from kernels import default_dtype


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_cpu_computes_in_bfloat16_only_where_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert default_dtype("cpu") == dtype


def test_gpu_computes_in_bfloat16() -> None:
    assert default_dtype("cuda") == torch.bfloat16
