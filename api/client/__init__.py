"""The Python client of the job API, for programs and for the command line.

    from api.client import Headrace

    with Headrace() as client:
        job = client.run("The water comes down the hill", max_tokens=32)
        print(job["output"]["text"])

        job = client.submit("Once upon a time", tier="low")
        for text in (stream := client.stream(job["id"])):
            print(text, end="", flush=True)
        print(stream.job["status"])

Where it finds the server and the key: `api.client.server`. What it sends and gets: `api.client.types`.
"""

from api.client.batch import Batch, BatchResult
from api.client.errors import BatchFailed, HeadraceError, NoModel, RequestRefused, ServerUnreachable, WaitTimeout
from api.client.event_lines import Event
from api.client.headrace import Headrace, Readiness
from api.client.stream import TextStream
from api.client.types import BatchState, Job, Replay

__all__ = [
    "Batch",
    "BatchFailed",
    "BatchResult",
    "BatchState",
    "Event",
    "Headrace",
    "HeadraceError",
    "Job",
    "NoModel",
    "Readiness",
    "Replay",
    "RequestRefused",
    "ServerUnreachable",
    "TextStream",
    "WaitTimeout",
]
