"""The shared library of C++ kernels, if it was built and is for this machine."""

import ctypes
import importlib.util
import logging
from ctypes import c_char_p, c_int, c_int64, c_void_p
from functools import lru_cache

log = logging.getLogger(__name__)

SIGNATURES = {
    "headrace_pool": (c_void_p, [c_int]),
    "headrace_free_pool": (None, [c_void_p]),
    "headrace_set_name": (c_char_p, [c_int]),
    "headrace_has_set": (c_int, [c_int]),
    "headrace_program": (c_void_p, [c_void_p, c_int]),
    "headrace_free_program": (None, [c_void_p]),
    "headrace_kernel": (c_void_p, [c_void_p, c_char_p]),
    "headrace_append": (c_int, [c_void_p, c_char_p, ctypes.POINTER(c_int64), c_int64]),
    "headrace_run": (None, [c_void_p, c_void_p]),
    "headrace_greedy": (None, [c_void_p, c_int, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]),
    "headrace_draw": (None, [c_void_p, c_int, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p]),
}


@lru_cache
def library() -> ctypes.CDLL | None:
    """The library with its functions' types set; None where the package was installed without it."""
    spec = importlib.util.find_spec("kernels.cpu._kernels")
    if spec is None or spec.origin is None:
        return None
    loaded = ctypes.CDLL(spec.origin)
    for name, (result, parameters) in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, parameters
    return loaded


@lru_cache
def instruction_sets() -> list[str]:
    """Those that this machine has, the best first; none without the library."""
    loaded = library()
    return [] if loaded is None else [name for name, is_there in _all_sets(loaded) if is_there]


def set_index(loaded: ctypes.CDLL, name: str) -> int:
    """The index of an instruction set in the library, which this machine must have."""
    names = [found if is_there else None for found, is_there in _all_sets(loaded)]
    return names.index(name)


def _all_sets(loaded: ctypes.CDLL) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    while (name := loaded.headrace_set_name(len(found))) is not None:
        found.append((name.decode(), bool(loaded.headrace_has_set(len(found)))))
    return found
