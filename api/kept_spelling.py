"""How a job's calls are read, kept with the job as JSON: its model may be gone when somebody looks."""

from collections.abc import Mapping
from typing import Any

from workers.text.tool_calls import CallSpelling

FIELD = "calls"  # of `Submission.request`; missing or null where nothing can be called


def with_spelling(request: Mapping[str, Any] | None, spelling: CallSpelling) -> dict[str, Any]:
    """What is kept with a job, and the spelling."""
    kept = {
        "style": spelling.style,
        "names": sorted(spelling.names),
        "markers": {str(token_id): marker for token_id, marker in spelling.markers.items()},
        "most_calls": spelling.most_calls,
    }
    return {**(request or {}), FIELD: kept}


def spelling_in(request: Mapping[str, Any] | None) -> CallSpelling | None:
    """The spelling; None where nothing can be called."""
    kept = (request or {}).get(FIELD)
    if kept is None:
        return None
    markers = {int(token_id): marker for token_id, marker in kept["markers"].items()}
    return CallSpelling(kept["style"], frozenset(kept["names"]), markers, kept["most_calls"])
