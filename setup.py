"""Builds `kernels/cpu` into one plain shared library. Everything else of the package is in pyproject.toml.

A source file's name says which instruction set it may use; the library chooses among them when it runs. Where there is
no C++ compiler the package installs without the library, and the reference in PyTorch computes.
"""

import os
import platform
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("kernels/cpu").glob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("kernels/cpu").glob("*.h"))
ARITHMETIC = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # the last lets conditions be vectors
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-exceptions", *ARITHMETIC, "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "bf16")), "-mprefer-vector-width=512"]
SETS = {"_avx2": AVX2, "_avx512": AVX512, "_amx": [*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]}


class BuildKernels(build_ext):
    """Gives each source file the flags of its instruction set, and each core a file."""

    def build_extensions(self) -> None:
        compile_one, compile_all = self.compiler._compile, self.compiler.compile

        def compile_with_set(obj: str, src: str, ext: str, cc_args: list[str], extra: list[str], pp: list[str]) -> None:
            flags = next((flags for suffix, flags in SETS.items() if Path(src).stem.endswith(suffix)), [])
            compile_one(obj, src, ext, cc_args, [*extra, *flags], pp)

        def compile_side_by_side(sources: list[str], **options: Any) -> list[str]:
            with ThreadPool(os.cpu_count()) as pool:
                return [
                    path for paths in pool.map(lambda path: compile_all([path], **options), sources) for path in paths
                ]

        self.compiler._compile, self.compiler.compile = compile_with_set, compile_side_by_side
        super().build_extensions()


def sources() -> list[str]:
    """Elsewhere than on x86 only what runs everywhere."""
    if platform.machine() in ("x86_64", "AMD64"):
        return SOURCES
    return [source for source in SOURCES if not any(Path(source).stem.endswith(suffix) for suffix in SETS)]


setup(
    ext_modules=[
        Extension(
            "kernels.cpu._kernels",
            sources(),
            depends=HEADERS,
            language="c++",
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
