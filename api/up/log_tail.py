"""The end of a process's log, as far as this run wrote it."""

import re
from pathlib import Path

TAIL_BYTES = 8192
PREFIX = re.compile(r"^[\d-]+ [\d:,]+ (?P<level>[A-Z]+) [\w.]+: ")  # of the lines of our own processes


class LogTail:
    """Reads one log, which another process writes; what it held before now belongs to earlier runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.old_size = path.stat().st_size if path.exists() else 0  # bytes

    def last_line(self) -> str:
        """The newest line that says something, without when and where."""
        return PREFIX.sub("", next(reversed(self._lines()), ""))

    def last_error(self) -> str | None:
        """The newest message that is an error."""
        return self._last("ERROR", "CRITICAL")

    def last_warning(self) -> str | None:
        """The newest message that is a warning."""
        return self._last("WARNING")

    def _last(self, *levels: str) -> str | None:
        for line in reversed(self._lines()):
            match = PREFIX.match(line)
            if match is not None and match["level"] in levels:
                return line[match.end() :]
        return None

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            file.seek(max(self.old_size if self.old_size <= size else 0, size - TAIL_BYTES))  # smaller: rotated
            text = file.read().decode(errors="replace")
        return [line.strip() for line in text.split("\n") if line.strip()]
