"""Files that are made once and then only read, by however many processes, until nobody wants them any more."""

import contextlib
import fcntl
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path


class Held:
    """A target that nobody removes as long as this object lives, or until the process ends, however it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        """`lock` is the descriptor of its locked lock file."""
        self.path = path
        weakref.finalize(self, os.close, lock)


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, made by `build(path)` under another name and renamed, unless it is there already.

    One process builds while others wait; what a killed one left half done is made anew.
    """
    return target if target.exists() else hold(target, build).path


def hold(target: Path, build: Callable[[Path], None]) -> Held:
    """`build_once`, and keeps it from `remove`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        held = Held(target, _lock(target, fcntl.LOCK_SH))
        if target.exists():
            os.utime(_lock_file(target))
            return held
        del held  # for a lock cannot be made exclusive, only given up for one that is
        _build(target, build)


def remove(target: Path) -> bool:
    """Whether `target` is gone with all that belongs to it. It stays while somebody holds or builds it."""
    try:
        lock = _lock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        partial = _partial(target)
        _remove(partial)
        if target.exists():
            target.rename(partial)  # at once: nobody shall find half of it
            _remove(partial)
        _lock_file(target).unlink()
    finally:
        os.close(lock)
    return True


def targets_in(directory: Path) -> list[Path]:
    """What was built there, or half built, the last used first."""
    times = {}
    for lock in directory.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError):  # another process removes some
            times[lock.with_suffix("")] = lock.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__, reverse=True)


def _build(target: Path, build: Callable[[Path], None]) -> None:
    lock = _lock(target, fcntl.LOCK_EX)
    try:
        if not target.exists():
            _build_locked(target, build)
    finally:
        os.close(lock)


def _build_locked(target: Path, build: Callable[[Path], None]) -> None:
    partial = _partial(target)
    _remove(partial)
    try:
        build(partial)
    except BaseException:
        _remove(partial)
        raise
    partial.rename(target)


def _lock(target: Path, operation: int) -> int:
    """The descriptor of its lock file, locked. Raises BlockingIOError instead of waiting when the operation says so."""
    path = _lock_file(target)
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, operation)
        except BaseException:
            os.close(lock)
            raise
        if _is_at(path, lock):
            return lock
        os.close(lock)  # it was removed while this one waited for it


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock_file(target: Path) -> Path:
    return target.with_name(target.name + ".lock")


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
