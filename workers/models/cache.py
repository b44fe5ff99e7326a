"""Files that are made once and then only read, by however many processes."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, made by `build(path)` under another name and renamed, unless it is there already.

    One process builds while others wait; what a killed one left half done is made anew.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given up when the process ends, however it ends
        if not target.exists():
            partial = target.with_name(target.name + ".partial")
            _remove(partial)
            build(partial)
            partial.rename(target)
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
