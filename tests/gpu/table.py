"""A markdown table in sections, printed as it grows."""


class Table:
    """Lines so far; each is on stdout at once, so that a run that is stopped has said what it knew."""

    def __init__(self, title: str) -> None:
        self._lines: list[str] = []
        self._add(f"# {title}")

    def section(self, title: str, columns: list[str]) -> None:
        self._add("", f"## {title}", "")
        if columns:
            self._add(_line(columns), _line(["---"] * len(columns)))

    def row(self, *cells: str) -> None:
        self._add(_line(list(cells)))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _add(self, *lines: str) -> None:
        self._lines.extend(lines)
        print("\n".join(lines), flush=True)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
