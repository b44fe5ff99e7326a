"""Triton kernels run in its interpreter here, on the CPU, whatever the machine has.

`@triton.jit` looks at the environment where a kernel is defined, so when this directory's tests are imported, and some
functions look again when they run. No other test, and no process that one starts, finds the variable set.
"""

import os

import pytest

VARIABLE = "TRITON_INTERPRET"
given = os.environ.get(VARIABLE)
os.environ[VARIABLE] = "1"

import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

# Where something imported Triton before, as transformers does, its own functions were defined to be compiled.
for module in (tl, tl.core, tl.standard):
    for name, function in list(vars(module).items()):
        if isinstance(function, JITFunction):
            setattr(module, name, InterpretedFunction(function.fn))


def pytest_collection_finish() -> None:
    """All kernels are defined: the variable is again as it was."""
    if given is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = given


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is set while a test of this directory runs."""
    monkeypatch.setenv(VARIABLE, "1")
