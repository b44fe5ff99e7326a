"""What Headrace sets out to reach beside its peers, and whether it does, on one shape."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.bench.speed.table import COLUMNS, Column, Row, markdown, number, ratio, value_of
from tests.bench.speed.targets import IN_PROCESS, THROUGH_HTTP, name_of

BY_HEADING = {column.heading: column for column in COLUMNS}
TRANSFORMERS = "transformers bf16"  # it admits nothing while a batch runs


@dataclass(frozen=True)
class Claim:
    """That Headrace is `wanted` times better than somebody in a figure."""

    what: str
    ours: float | None
    against: str
    theirs: float | None
    reached: float | None
    wanted: float

    def cells(self) -> list[str]:
        is_met = self.reached is not None and self.reached >= self.wanted
        theirs = f"{self.against}: {number(self.theirs)}"
        verdict = "yes" if is_met else "no"
        return [self.what, number(self.ours), theirs, number(self.reached), f"{self.wanted:.2f}", verdict]


def bar(rows: Iterable[Row]) -> str:
    """A line for each claim of which both sides were measured; a ratio of 2 means twice as many, or half as long."""
    claims = Claims({row.target.name: row for row in rows if row.runs})
    heading = ["what", "Headrace", "against", "times better", "wanted", "met"]
    return markdown(heading, [claim.cells() for claim in claims.all() if claim.reached is not None])


class Claims:
    """Makes claims out of what was measured."""

    def __init__(self, rows: dict[str, Row]) -> None:
        self._rows = rows

    def all(self) -> Iterator[Claim]:
        """Against peers first, then against itself."""
        for place in (IN_PROCESS, THROUGH_HTTP):
            bf16, int8, int4 = (name_of(precision, place) for precision in ("bf16", "int8", "int4"))
            yield self._claim("W1 out tok/s", bf16, ["vLLM bf16"], 1.4)
            yield self._claim("W1 out tok/s", int8, ["vLLM W8A8"], 1.4)
            yield self._claim("W2 ITL p50", bf16, ["llama.cpp bf16"], 1.0)
            yield self._claim("W2 ITL p50", int4, ["llama.cpp q4_0"], 1.0)
            is_alone = place == IN_PROCESS
            yield self._claim("W2 TTFT ms", bf16, ["vLLM bf16"], 1.3 if is_alone else 1.0)
            yield self._claim("W2 TTFT ms", int8, ["vLLM W8A8"], 1.3 if is_alone else 1.0)
            yield self._claim("W3 ITL p99", bf16, self._peers("bf16"), 3.0)
            yield self._claim("W3 TTFT p50", bf16, self._peers("bf16"), 1.0)
            yield self._claim("W4 cold tok/s", bf16, ["vLLM bf16"], 1.4)
            yield self._claim("W4 warm tok/s", bf16, ["vLLM bf16"], 1.4)
            yield self._claim("W4 warm tok/s", int8, ["vLLM W8A8"], 1.3)
            yield self._claim("W5 ITL p99 during", bf16, self._admitting(), 10.0)
            yield self._claim("W5 long TTFT", bf16, self._admitting(), 1 / 1.3)
        yield from self._through_http()
        worker = name_of("bf16", THROUGH_HTTP)
        yield self._claim("peak MB", worker, ["vLLM bf16"], 4.0)
        yield self._claim("start s", worker, ["vLLM bf16"], 15.0)

    def _through_http(self) -> Iterator[Claim]:
        for precision, wanted in (("bf16", 0.95), ("int8", 0.92)):
            ours, itself = name_of(precision, THROUGH_HTTP), name_of(precision, IN_PROCESS)
            yield self._claim("W1 out tok/s", ours, [itself], wanted)
        column = BY_HEADING["W2 TTFT ms"]
        there, here = (self._value(name_of("bf16", place), column) for place in (THROUGH_HTTP, IN_PROCESS))
        added = None if there is None or here is None else max(0.01, there - here)
        reached = None if added is None else 12 / added
        yield Claim("W2 TTFT ms added by HTTP, queue and database", added, "at most", 12.0, reached, 1.0)

    def _peers(self, precision: str) -> list[str]:
        return [name for name in self._rows if not name.startswith("Headrace") and precision in name]

    def _admitting(self) -> list[str]:
        """Peers with their first settings that take a prompt in while others decode."""
        return [name for name in self._peers("bf16") if name != TRANSFORMERS and ", " not in name]

    def _claim(self, heading: str, ours: str, peers: list[str], wanted: float) -> Claim:
        """Against the best of `peers` in this figure."""
        column, value = BY_HEADING[heading], self._value(ours, BY_HEADING[heading])
        found = {name: each for name in peers if (each := self._value(name, column)) is not None}
        what = f"{heading}, {ours.removeprefix('Headrace ')}"
        if not found:
            return Claim(what, value, " or ".join(peers), None, None, wanted)
        best = (max if column.is_rate else min)(found, key=lambda name: found[name])
        return Claim(what, value, best, found[best], ratio(value, found[best], column), wanted)

    def _value(self, name: str, column: Column) -> float | None:
        return value_of(self._rows[name], column) if name in self._rows else None
