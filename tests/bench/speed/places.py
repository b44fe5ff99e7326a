"""Where the client of an engine stands, which a row's name says: figures are alike only within a place."""

IN_PROCESS, THROUGH_HTTP = "in process", "HTTP"


def name_of(engine: str, place: str, *tuning: str) -> str:
    """A row's name; `tuning` is what was added to an engine's first settings."""
    return ", ".join((engine, place, *tuning))


def is_at(name: str, place: str) -> bool:
    """Whether it is the row of an engine with its first settings, in that place."""
    return name.endswith(f", {place}")
