"""What the package build does on a machine without a C++ compiler."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_imports import ROOT

# Stands where the package `ziglang` has its binary: notes how it was called, and leaves the file it was to make.
ZIG = f"""#!{sys.executable}
import json, pathlib, sys
with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).touch()
"""


def build(directory: Path, **variables: str) -> list[Path]:
    """Build with nothing on the PATH; the libraries that came of it."""
    (directory / "empty").mkdir()
    target = ["--build-lib", str(directory / "lib"), "--build-temp", str(directory / "temp")]
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", *target],
        cwd=ROOT,
        env={"PATH": str(directory / "empty"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list((directory / "lib").glob("kernels/cpu/_kernels*.so"))


@pytest.fixture
def calls(tmp_path: Path) -> list[list[str]]:
    """How the package build calls ziglang's compiler: the words of each command, the linker's last."""
    package = tmp_path / "site" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "zig").write_text(ZIG)
    (package / "zig").chmod(0o755)
    assert build(tmp_path, PYTHONPATH=os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")]))
    return [json.loads(line) for line in (package / "calls").read_text().splitlines()]


def test_the_package_ziglang_compiles_each_file_for_its_instruction_set_and_no_more(calls: list[list[str]]) -> None:
    assert {tuple(call[:2]) for call in calls} == {("c++", "-mcpu=baseline")}
    sources = {Path(word).stem: call for call in calls for word in call if word.endswith(".cpp")}
    assert "-mavx2" not in sources["linear_portable"]
    assert [("-mavx2" in sources[name], "-mavx512bf16" in sources[name]) for name in ("linear_avx2", "linear_amx")] == [
        (True, False),
        (True, True),
    ]
    assert "-shared" in calls[-1]


def test_of_what_several_files_have_the_library_takes_what_most_processors_run(calls: list[list[str]]) -> None:
    names = [Path(word).stem for word in calls[-1] if word.endswith(".o")]
    sets = [next((set for set in ("avx2", "avx512", "amx") if name.endswith(set)), "any") for name in names]
    assert list(dict.fromkeys(sets)) == ["any", "avx2", "avx512", "amx"]


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="here the package ziglang compiles")
def test_without_any_compiler_the_package_is_built_without_the_library(tmp_path: Path) -> None:
    assert build(tmp_path, PYTHONPATH=os.environ.get("PYTHONPATH", "")) == []
