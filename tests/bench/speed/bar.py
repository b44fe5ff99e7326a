"""What Headrace sets out to reach beside its peers, and whether it does, on one shape."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.bench.speed.places import IN_PROCESS, THROUGH_HTTP, is_at, name_of
from tests.bench.speed.table import COLUMNS, Column, Row, markdown, number, ratio, value_of

BY_HEADING = {column.heading: column for column in COLUMNS}
TRANSFORMERS = name_of("transformers bf16", IN_PROCESS)  # it admits nothing while a batch runs
VLLM = name_of("vLLM bf16", THROUGH_HTTP)


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
    groups = {
        "Both through HTTP; Headrace's with its queue and Postgres": claims.against_peers(THROUGH_HTTP, THROUGH_HTTP),
        "Both in process": claims.against_peers(IN_PROCESS, IN_PROCESS),
        "Unlike: Headrace in process, peers through HTTP": claims.against_peers(IN_PROCESS, THROUGH_HTTP),
        "Headrace through HTTP against itself in process": claims.against_itself(),
        "Headrace's worker against vLLM's server": claims.of_processes(),
    }
    return "\n\n".join(part for title, found in groups.items() for part in _group(title, found))


def _group(title: str, claims: Iterable[Claim]) -> list[str]:
    heading = ["what", "Headrace", "against", "times better", "wanted", "met"]
    lines = [claim.cells() for claim in claims if claim.reached is not None]
    return [f"{title}:", markdown(heading, lines)] if lines else []


class Claims:
    """Makes claims out of what was measured."""

    def __init__(self, rows: dict[str, Row]) -> None:
        self._rows = rows

    def against_peers(self, place: str, theirs: str) -> Iterator[Claim]:
        """Of Headrace in `place`, against peers in `theirs`."""
        bf16, int8, int4 = (name_of(f"Headrace {precision}", place) for precision in ("bf16", "int8", "int4"))
        vllm, w8a8 = ([name_of(engine, theirs)] for engine in ("vLLM bf16", "vLLM W8A8"))
        peers = self._peers(theirs)
        admitting = [name for name in peers if name != TRANSFORMERS]
        ttft = 1.3 if place == IN_PROCESS else 1.0
        yield self._claim("W1 out tok/s", bf16, vllm, 1.4)
        yield self._claim("W1 out tok/s", int8, w8a8, 1.4)
        yield self._claim("W2 ITL p50", bf16, [name_of("llama.cpp bf16", theirs)], 1.0)
        yield self._claim("W2 ITL p50", int4, [name_of("llama.cpp q4_0", theirs)], 1.0)
        yield self._claim("W2 TTFT ms", bf16, vllm, ttft)
        yield self._claim("W2 TTFT ms", int8, w8a8, ttft)
        yield self._claim("W3 ITL p99", bf16, peers, 3.0)
        yield self._claim("W3 TTFT p50", bf16, peers, 1.0)
        yield self._claim("W4 cold tok/s", bf16, vllm, 1.4)
        yield self._claim("W4 warm tok/s", bf16, vllm, 1.4)
        yield self._claim("W4 warm tok/s", int8, w8a8, 1.3)
        yield self._claim("W5 ITL p99 during", bf16, admitting, 10.0)
        yield self._claim("W5 long TTFT", bf16, admitting, 1 / 1.3)

    def against_itself(self) -> Iterator[Claim]:
        for precision, wanted in (("bf16", 0.95), ("int8", 0.92)):
            ours, itself = (name_of(f"Headrace {precision}", place) for place in (THROUGH_HTTP, IN_PROCESS))
            yield self._claim("W1 out tok/s", ours, [itself], wanted)
        column = BY_HEADING["W2 TTFT ms"]
        there, here = (self._value(name_of("Headrace bf16", place), column) for place in (THROUGH_HTTP, IN_PROCESS))
        added = None if there is None or here is None else max(0.01, there - here)
        reached = None if added is None else 12 / added
        yield Claim("W2 TTFT ms added by HTTP, queue and database", added, "at most", 12.0, reached, 1.0)

    def of_processes(self) -> Iterator[Claim]:
        worker = name_of("Headrace bf16", THROUGH_HTTP)
        yield self._claim("peak MB", worker, [VLLM], 4.0)
        yield self._claim("start s", worker, [VLLM], 15.0)

    def _peers(self, place: str) -> list[str]:
        """Those in bf16, with their first settings."""
        peers = [name for name in self._rows if not name.startswith("Headrace") and "bf16" in name]
        return [name for name in peers if is_at(name, place)]

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
