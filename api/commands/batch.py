"""`headrace batch`: many requests from a file, and their results as they come."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.connection import (
    EXIT_NOT_SUCCEEDED,
    JOBS,
    JsonOption,
    KeyOption,
    UrlOption,
    connect,
    leaving,
    print_json,
)

if TYPE_CHECKING:
    from api.client import BatchState

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(rich_help_panel=JOBS)(batch)


def batch(
    source: Annotated[
        str, typer.Argument(help="The file, a request per line; or a batch's id, to come back to it.", metavar="FILE")
    ],
    window: Annotated[str, typer.Option(help="The longest that it may take, such as 90m or 7d.")] = "24h",
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Run a file of requests as a batch, and print each result, a line of JSON, as it comes.

    A request is a line: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}. Results carry
    its custom_id, and are not in its order. Exit code 3: some requests did not succeed.

    Example: headrace batch requests.jsonl > results.jsonl
    """
    from api.commands.render import stderr

    endpoint = None if BATCH_ID.fullmatch(source) else _endpoint_of(Path(source))
    with connect(url, key, is_json=is_json, is_patient=True) as client:
        if endpoint is None:
            run = client.get_batch(source)
        else:
            run = client.batch(Path(source), endpoint=endpoint, completion_window=window)
        with leaving(run.id, what="batch", again="batch"), stderr().status("") as line:
            stderr().print(run.id, style="dim")
            for result in run.lines():
                print_json(result)
                line.update(_progress(run.state))
        stderr().print(_progress(run.state))
    if run.state["status"] != "completed" or run.state["request_counts"]["failed"]:
        raise typer.Exit(EXIT_NOT_SUCCEEDED)


def _progress(state: "BatchState") -> str:
    counts = state["request_counts"]
    failed = f", {counts['failed']:,} without success" if counts["failed"] else ""
    return f"{state['status']}  {counts['completed'] + counts['failed']:,} of {counts['total']:,} have ended{failed}"


def _endpoint_of(path: Path) -> str:
    """What the file's first line calls; every line has to call the same."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline())
    except OSError as error:
        raise typer.BadParameter(f"cannot read '{path}': {error.strerror}", param_hint="FILE") from None
    except ValueError:
        first = None
    if not isinstance(first, dict) or not isinstance(first.get("url"), str):
        raise typer.BadParameter(f"the first line of '{path}' is no request: it has no 'url'", param_hint="FILE")
    return str(first["url"])
