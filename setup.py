"""Builds `kernels/cpu` into one plain shared library. Everything else of the package is in pyproject.toml.

A source file's name says which instruction set it may use; the library chooses among them when it runs. Where there is
no C++ compiler the one of the package `ziglang` does, if it is installed; without that, too, the package installs
without the library, and the reference in PyTorch computes.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("kernels/cpu").glob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("kernels/cpu").glob("*.h"))
ARITHMETIC = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]  # the last lets conditions be vectors
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-exceptions", *ARITHMETIC, "-Wall", "-Wextra"]
# Each compiler knows one of the first two; the third warns of vectors as arguments, which no two files share.
FLAGS += ["-Wno-unknown-warning-option", "-Wno-maybe-uninitialized", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni", "bf16")), "-mprefer-vector-width=512"]
AMX = [*AVX512, "-mavx512vbmi", "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
SETS = {"_avx2": AVX2, "_avx512": AVX512, "_amx": AMX}  # each has what those before it have


class BuildKernels(build_ext):
    """Gives each source file the flags of its instruction set, and each core a file."""

    def build_extensions(self) -> None:
        self._find_compiler()
        compile_one, compile_all = self.compiler._compile, self.compiler.compile

        def compile_with_set(obj: str, src: str, ext: str, cc_args: list[str], extra: list[str], pp: list[str]) -> None:
            flags = next((flags for suffix, flags in SETS.items() if Path(src).stem.endswith(suffix)), [])
            compile_one(obj, src, ext, cc_args, [*extra, *flags], pp)

        def compile_side_by_side(sources: list[str], **options: Any) -> list[str]:
            # The linker takes a function that several files have, as those of the standard library, from the first.
            ordered = sorted(sources, key=instruction_set)
            with ThreadPool(os.cpu_count()) as pool:
                return [
                    path for paths in pool.map(lambda path: compile_all([path], **options), ordered) for path in paths
                ]

        self.compiler._compile, self.compiler.compile = compile_with_set, compile_side_by_side
        super().build_extensions()

    def _find_compiler(self) -> None:
        """Unless there is the one that Python was built with, or CXX names: any other."""
        if shutil.which(self.compiler.compiler_so_cxx[0]) is None and (other := other_compiler()):
            os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path(self.build_temp).absolute() / "zig"))
            commands = {
                "compiler_cxx": [],
                "compiler_so_cxx": ["-fPIC"],
                "linker_so_cxx": ["-shared"],
                "linker_exe_cxx": [],
            }
            self.compiler.set_executables(**{name: [*other, *flags] for name, flags in commands.items()})


def other_compiler() -> list[str] | None:
    """The command of a C++ compiler that can be found, if one can."""
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found:
        return [found]
    zig = ziglang()
    # Left alone, it compiles for the machine at hand.
    return [str(zig), "c++", "-mcpu=baseline"] if zig else None


def ziglang() -> Path | None:
    """The binary that this environment has, though pip may build in another that sees nothing installed here."""
    if spec := importlib.util.find_spec("ziglang"):
        return Path(spec.origin or "").with_name("zig")
    program = "import ziglang; print(ziglang.__file__)"
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", program], env=outside, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip()).with_name("zig") if done.returncode == 0 else None


def instruction_set(source: str) -> int:
    """0 for a file that runs everywhere; the greater, the more a processor must have."""
    return next((rank for rank, suffix in enumerate(SETS, 1) if Path(source).stem.endswith(suffix)), 0)


def sources() -> list[str]:
    """Elsewhere than on x86 only what runs everywhere."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return [source for source in SOURCES if is_x86 or not instruction_set(source)]


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
