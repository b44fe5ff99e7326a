"""The append-only files of the embedded Valkey, mended before it starts: damage must not keep it from starting.

Valkey itself forgives a last command that is not whole, and refuses all other damage. What it holds is also in
Postgres, or in the memory of the workers, so that a start with less, or empty, is better than none.
"""

import logging
import re
import shutil
import subprocess
from pathlib import Path

DIRECTORY = "appendonlydir"
MANIFEST = "appendonly.aof.manifest"
BASE, INCREMENT, HISTORY = "b", "i", "h"  # types of files; history is what a rewrite has made superfluous
ENTRY = re.compile(rf"file (?P<name>[^\s/]+) seq \d+ type (?P<type>[{BASE}{INCREMENT}{HISTORY}])")

log = logging.getLogger(__name__)


class Damaged(Exception):
    """The files cannot be mended; the message says what is wrong."""


def mend(valkey_dir: Path, valkey_binary: str) -> None:
    """Cut off what cannot be read at the end of the last file; set all of them aside when that is not enough.

    Whatever is kept is what Valkey held at one moment. No server may be running there.
    """
    directory = valkey_dir / DIRECTORY
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    try:
        _mend_files(directory, valkey_binary)
    except Damaged as damaged:
        aside = valkey_dir / f"{DIRECTORY}.damaged"
        shutil.rmtree(aside, ignore_errors=True)  # at most one is kept
        directory.rename(aside)
        log.error("Valkey's data is damaged and set aside; it starts empty: %s", damaged, extra={"kept_as": str(aside)})


def _mend_files(directory: Path, binary: str) -> None:
    bases, increments = _listed(directory / MANIFEST)
    for path in (*bases, *increments):
        if not path.is_file():
            raise Damaged(f"{path.name} is missing")
    for path in bases:
        # Not checked as part of the whole, as `valkey-check-aof <manifest>` would: it takes Valkey 9's own format for
        # damaged, and cuts it off.
        if _check(binary, "valkey-check-rdb", path) != 0:
            raise Damaged(f"{path.name} is not whole")
    for path in increments:
        size = path.stat().st_size
        if _check(binary, "valkey-check-aof", "--fix", path) != 0:
            raise Damaged(f"{path.name} cannot be mended")
        num_lost = size - path.stat().st_size
        if num_lost and path != increments[-1]:
            raise Damaged(f"{path.name} was cut in the middle of what happened")
        if num_lost:
            log.warning("Valkey's last commands cannot be read and are cut off", extra={"num_bytes": num_lost})


def _listed(manifest: Path) -> tuple[list[Path], list[Path]]:
    """The files that Valkey is going to read: the base, and what happened since, in order."""
    try:
        text = manifest.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(f"{manifest.name} cannot be read: {error}") from error
    if not text.endswith("\n"):
        raise Damaged(f"{manifest.name} is not whole")
    of_type: dict[str, list[Path]] = {BASE: [], INCREMENT: [], HISTORY: []}
    for line in text.splitlines():
        entry = ENTRY.fullmatch(line)
        if entry is None:
            raise Damaged(f"{manifest.name} is not whole")
        of_type[entry["type"]].append(manifest.with_name(entry["name"]))
    return of_type[BASE], of_type[INCREMENT]


def _check(binary: str, name: str, *arguments: str | Path) -> int:
    """The exit status of one of the tools that the server's program is when it is called by their names."""
    argv = [name, *map(str, arguments)]
    return subprocess.run(argv, executable=binary, input=b"y\n", capture_output=True, check=False).returncode
