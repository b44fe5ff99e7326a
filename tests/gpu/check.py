"""`python -m tests.gpu.check`: whether every Triton kernel is right on this GPU, and how fast; under 8 minutes.

Needs a GPU, torch and triton, for the engine also safetensors and numpy, and no network. The table goes to stdout and a
file. With `--tiny` it runs through Triton's interpreter on a CPU, which shows that the script works and nothing else.
"""

import argparse
import os
import sys
from pathlib import Path

import torch

from tests.bench.machine import commit
from tests.gpu.table import Table

NEEDS = """\
no GPU that PyTorch can use was found. This check needs:
  a GPU with bfloat16 (Ampere or newer) and its driver
  torch built for CUDA, and triton
  safetensors and numpy, for the engine's part
`python -m tests.gpu.check --tiny` runs it through Triton's interpreter on a CPU."""
ENGINE_MODULES = {"safetensors", "numpy"}


def main() -> int:
    options = _parse()
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is defined
    elif not torch.cuda.is_available():
        print(NEEDS, file=sys.stderr)
        return 2
    table = Table(f"Triton kernels and engine, {_describe(options.tiny)}")
    is_good = check_kernels(table, is_tiny=options.tiny)
    is_good &= check_engine(table, is_tiny=options.tiny, seconds=options.seconds)
    options.output.write_text(table.text())
    return 0 if is_good else 1


def check_kernels(table: Table, *, is_tiny: bool) -> bool:
    """Every kernel against the reference, and its bandwidth beside a copy's; whether all are right."""
    # Here, as the interpreter has to be chosen first.
    from tests.gpu.kernel_cases import make_cases
    from tests.gpu.measure import copy_bandwidth, error_ratio, seconds_of

    device = "cpu" if is_tiny else "cuda"
    copy = copy_bandwidth(device)
    table.section(
        f"Kernels; a plain copy moves {copy / 1e9:,.0f} GB/s",
        ["kernel", "shape", "error, of what is allowed", "us", "GB/s", "of a copy"],
    )
    is_good = True
    for case in make_cases(device, is_tiny=is_tiny):
        ratio = error_ratio(case)
        seconds = seconds_of(case.timed or case.run, device)
        bandwidth = case.num_bytes / seconds
        verdict = f"{ratio:.2f}" if ratio <= 1 else f"**{ratio:.2f}**"
        table.row(
            case.name,
            case.shape,
            verdict,
            f"{seconds * 1e6:,.1f}",
            f"{bandwidth / 1e9:,.1f}",
            f"{bandwidth / copy:.0%}",
        )
        is_good &= ratio <= 1
    return is_good


def check_engine(table: Table, *, is_tiny: bool, seconds: float) -> bool:
    """Whether the engine gives the CPU's tokens on the device; and how many it gives a second."""
    try:
        from tests.gpu import engine_runs
    except ModuleNotFoundError as error:
        if error.name not in ENGINE_MODULES:
            raise
        table.section(f"The engine did not run: there is no {error.name}", [])
        return True
    device = "cpu" if is_tiny else "cuda"
    num_equal, num_tokens = engine_runs.compare(device)
    table.section("The engine", ["run", "result"])
    table.row("tiny Qwen3 in fp32, tokens equal to the CPU's", f"{num_equal} of {num_tokens}")
    shape = engine_runs.TINY if is_tiny else engine_runs.QWEN3_0_6B
    load = engine_runs.Load(num_sequences=4, shortest=5, longest=12) if is_tiny else engine_runs.Load()
    result = engine_runs.run_load(shape, load, device, seconds=seconds)
    table.row(f"{load}, {shape.name}", result)
    return num_equal == num_tokens


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small shapes, interpreted on the CPU")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.md"), help="where the table goes")
    parser.add_argument("--seconds", type=float, default=150.0, help="after which the engine's load is cut short")
    return parser.parse_args()


def _describe(is_tiny: bool) -> str:
    import triton

    where = "interpreted on a CPU" if is_tiny else torch.cuda.get_device_name()
    return f"{where}, torch {torch.__version__}, triton {triton.__version__}, commit {commit()}"


if __name__ == "__main__":
    sys.exit(main())
