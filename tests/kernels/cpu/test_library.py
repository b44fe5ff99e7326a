"""Which instruction sets the library finds on this machine, beside what Linux says of it."""

from pathlib import Path

import pytest

from kernels.cpu.library import instruction_sets, library

pytestmark = pytest.mark.skipif(library() is None, reason="the library of CPU kernels is not built")

AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"}
AMX = AVX512 | {"avx512vbmi", "amx_tile", "amx_bf16", "amx_int8"}
NEEDED = {"amx": AMX, "avx512": AVX512, "avx2": AVX2, "portable": set()}


def test_the_sets_are_those_whose_instructions_linux_lists_for_this_processor() -> None:
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    flags = set(lines[0].split()) if lines else set()
    assert instruction_sets() == [name for name, needed in NEEDED.items() if needed <= flags]
