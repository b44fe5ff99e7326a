"""What the commands that talk to a server share: their options, the client, and how errors and ends become exits."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from api.client import Headrace

JOBS = "Jobs"  # heading in `headrace --help`

EXIT_ERROR, EXIT_NOT_SUCCEEDED, EXIT_INTERRUPTED = 1, 3, 130

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="The server; default HEADRACE_URL, or http://127.0.0.1:8000, or HEADRACE_PORT's.", show_default=False
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        help="API key; default HEADRACE_API_KEY, or for this machine's server the file api-key in HEADRACE_DATA_DIR.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts. Errors are JSON on stderr.")]
JobId = Annotated[str, typer.Argument(help="The job's id, as `headrace submit` printed it.", metavar="JOB")]


@contextmanager
def connect(url: str | None, key: str | None, *, is_json: bool, is_patient: bool = False) -> Iterator["Headrace"]:
    """A client of the server that options and settings name. Its errors end the command with one clear message.

    A patient one sits out a restart of the server and a full queue: for commands that take a while anyway.
    """
    from pydantic import ValidationError

    from api.client import Headrace, HeadraceError, RequestRefused
    from api.client.headrace import PATIENCE_SECONDS

    try:
        patience_seconds = PATIENCE_SECONDS if is_patient else 0.0
        client = Headrace(url, key, patience_seconds=patience_seconds, first_contact_seconds=0.0)
    except ValidationError as error:
        fail(settings_message(error), is_json=is_json)
    try:
        with client:
            yield client
    except RequestRefused as error:
        fail(error.message, is_json=is_json, hint=error.hint, body=error.body, request_id=error.request_id)
    except HeadraceError as error:
        fail(error.message, is_json=is_json, hint=error.hint)


def fail(
    message: str,
    *,
    is_json: bool,
    hint: str | None = None,
    body: dict[str, Any] | None = None,
    request_id: str | None = None,
) -> NoReturn:
    """End the command: what went wrong and the way out on stderr, exit code 1."""
    if is_json:
        error = body or {"error": {"message": message, "type": "client_error", "param": None, "code": None}}
        print(json.dumps(error), file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)
    from api.commands.render import stderr

    console = stderr()
    console.print("Error:", style="bold red", end=" ")
    console.print(message, markup=False, highlight=False)
    if hint:
        console.print(hint, markup=False, highlight=False)
    if request_id:
        console.print(f"request {request_id}", style="dim", highlight=False)
    raise typer.Exit(EXIT_ERROR)


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def exit_as(job: Mapping[str, Any]) -> None:
    """End the command with code 3 when `job` has ended other than well."""
    if job["status"] not in ("queued", "running", "succeeded"):
        raise typer.Exit(EXIT_NOT_SUCCEEDED)


@contextmanager
def leaving(public_id: str, *, what: str = "job", again: str = "tail") -> Iterator[None]:
    """While a job or a batch is watched: Ctrl-C says that it goes on, and which command comes back to it."""
    try:
        yield
    except KeyboardInterrupt:
        from api.commands.render import stderr

        print(file=sys.stderr)
        come_back = f"`headrace {again} {public_id}` shows it again, `headrace cancel {public_id}` ends it."
        note = f"The {what} goes on. {come_back}"
        stderr().print(note, markup=False, highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def settings_message(error: Any) -> str:
    """The first thing that is wrong with the settings, in words."""
    first = error.errors()[0]
    return f"HEADRACE_{str(first['loc'][0]).upper()}: {first['msg'][:1].lower()}{first['msg'][1:]}."
