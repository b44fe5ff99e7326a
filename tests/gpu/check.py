"""`python -m tests.gpu.check`: whether every Triton kernel is right on this GPU, and how fast; under 8 minutes.

Needs a GPU, torch and triton, for the engine also safetensors, gguf and numpy, and no network. The table goes to
stdout and a file. With `--tiny` it runs on a CPU, through Triton's interpreter and with a stand-in for CUDA's graphs,
which shows that the script works and nothing else.
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
  safetensors, gguf and numpy, for the engine's part
`python -m tests.gpu.check --tiny` runs it through Triton's interpreter on a CPU."""
ENGINE_MODULES = {"safetensors", "numpy", "gguf"}
# Share of equal tokens. Activations half-way between two of int8's steps may be rounded to either.
LEAST_EQUAL = {"fp32": 1.0, "int8": 0.8, "int4": 1.0}
LOAD_SHARES = (0.4, 0.2, 0.2, 0.2)  # of the seconds: bf16, without graphs, int8, int4


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
    """Whether the engine gives the CPU's tokens on the device, in every weight format; and how many a second."""
    try:
        from tests.gpu import engine_runs  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ENGINE_MODULES:
            raise
        table.section(f"The engine did not run: there is no {error.name}", [])
        return True
    table.section("The engine, with slots, graphs and overlap", ["run", "result"])
    is_good = _check_tokens(table, "cpu" if is_tiny else "cuda")
    _time_loads(table, is_tiny=is_tiny, seconds=seconds)
    return is_good


def _check_tokens(table: Table, device: str) -> bool:
    from tests.gpu.engine_runs import Variant, compare

    is_good = True
    for weights, least in LEAST_EQUAL.items():
        num_equal, num_tokens = compare(Variant(device, *([] if weights == "fp32" else [weights])))
        is_enough = num_equal >= least * num_tokens
        counts = f"{num_equal} of {num_tokens}"
        table.row(f"tiny Qwen3, {weights}, tokens equal to the CPU's", counts if is_enough else f"**{counts}**")
        is_good &= is_enough
    return is_good


def _time_loads(table: Table, *, is_tiny: bool, seconds: float) -> None:
    from tests.gpu.engine_runs import QWEN3_0_6B, TINY, Load, Variant, run_load

    device = "cpu" if is_tiny else "cuda"
    shape = TINY if is_tiny else QWEN3_0_6B
    load = Load(num_sequences=4, shortest=5, longest=12) if is_tiny else Load()
    variants = [Variant(device), Variant(device, has_graphs=False), Variant(device, "int8"), Variant(device, "int4")]
    for variant, share in zip(variants, LOAD_SHARES, strict=True):
        table.row(f"{load}, {shape.name}, {variant}", run_load(shape, load, variant, seconds=share * seconds))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small shapes, interpreted on the CPU")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.md"), help="where the table goes")
    parser.add_argument("--seconds", type=float, default=200.0, help="after which the engine's loads are cut short")
    return parser.parse_args()


def _describe(is_tiny: bool) -> str:
    import triton

    where = "interpreted on a CPU" if is_tiny else torch.cuda.get_device_name()
    return f"{where}, torch {torch.__version__}, triton {triton.__version__}, commit {commit()}"


if __name__ == "__main__":
    sys.exit(main())
