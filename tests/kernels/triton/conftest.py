"""Triton kernels run in its interpreter here, on the CPU, whatever the machine has.

`@triton.jit` looks at the environment where a kernel is defined, so when this directory's tests are imported, and some
functions look again when they run. No other test, and no process that one starts, finds the variable set.
"""

import os
from typing import Any

import numpy as np
import pytest

VARIABLE = "TRITON_INTERPRET"
given = os.environ.get(VARIABLE)
os.environ[VARIABLE] = "1"

import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

# Where something imported Triton before, as transformers does, its own functions were defined to be compiled.
for module in (tl, tl.core, tl.standard):
    for name, function in list(vars(module).items()):
        if isinstance(function, JITFunction):
            setattr(module, name, InterpretedFunction(function.fn))

create_dot = InterpreterBuilder.create_dot


def dot_of_doubles(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """BLAS multiplies for the interpreter, and on some processors a row's sums depend on its place in a tile. No GPU's
    do: in float64 nothing of that is left once they are rounded.
    """
    if d.data.dtype != np.float32 or a.data.dtype != np.float32:
        return create_dot(builder, a, b, d, *options)
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)).astype(np.float32)
    return TensorHandle(product + d.data, d.dtype.scalar)


InterpreterBuilder.create_dot = dot_of_doubles


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
