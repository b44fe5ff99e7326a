"""The check for GPUs works where there is none, as far as it can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

KERNELS = [
    *("rms_norm", "add_rms_norm", "silu_and_mul", "gelu_and_mul", "embedding", "rotate_and_store"),
    *("copy_blocks", "paged_attention, decode", "paged_attention, chunk", "quantize_rows", "int8_linear"),
    *("int4_linear, groups of 32", "int4_linear, groups of 128", "greedy", "draw_many", "find_floors"),
]


def run_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu.check", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)


def test_tiny_check_finds_every_kernel_right_and_writes_its_table(tmp_path: Path) -> None:
    done = run_check("--tiny", "--output", str(tmp_path / "table.md"))
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "table.md").read_text()
    assert table == done.stdout
    for kernel in KERNELS:
        assert f"| {kernel}" in table
    for weights in ("fp32", "int8", "int4"):
        assert f"{weights}, tokens equal to the CPU's | 120 of 120 |" in table
    for variant in ("bf16", "bf16 without graphs", "int8", "int4"):
        assert f"a tiny shape, {variant} | " in table


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run for minutes")
def test_check_says_what_it_needs_where_there_is_no_gpu(tmp_path: Path) -> None:
    done = run_check("--output", str(tmp_path / "table.md"))
    assert done.returncode == 2 and not (tmp_path / "table.md").exists()
    assert "a GPU with bfloat16" in done.stderr and "--tiny" in done.stderr
