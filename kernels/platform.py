"""What PyTorch computes well on the machine at hand."""

import torch


def default_dtype(device: torch.device | str) -> torch.dtype:
    """bfloat16 where the device multiplies it in hardware, else float32, which is faster than bfloat16 emulated."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False)
    return torch.bfloat16 if has_bfloat16 else torch.float32
