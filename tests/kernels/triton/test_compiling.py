"""The kernels compile for devices that are not there, which the interpreter says nothing about."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_tensor_cores_and_fits_the_smallest_shared_memory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # nothing is found there, so all are compiled
    command = [sys.executable, "-m", "tests.kernels.triton.compiled", "bfloat16", "86"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sm_86, bfloat16:")
