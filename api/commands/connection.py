"""What the commands that talk to a server share: their options, the client, and how errors and ends become exits."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from api.client import Client, RequestRefused

JOBS = "Jobs"  # heading in `headrace --help`

EXIT_ERROR, EXIT_NOT_SUCCEEDED, EXIT_INTERRUPTED = 1, 3, 130

UrlOption = Annotated[
    str | None,
    typer.Option(envvar="HEADRACE_URL", help="The server; default http://127.0.0.1:8000, or HEADRACE_PORT's."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        help="API key; default HEADRACE_API_KEY, or the file api-key in HEADRACE_DATA_DIR.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts. Errors are JSON on stderr.")]
JobId = Annotated[str, typer.Argument(help="The job's id, as `headrace submit` printed it.", metavar="JOB")]


@contextmanager
def connect(url: str | None, key: str | None, *, is_json: bool) -> Iterator["Client"]:
    """A client of the server that options and settings name. Its errors end the command with one clear message."""
    from pydantic import ValidationError

    from api.client import Client, RequestRefused, ServerUnreachable

    try:
        url, key = url or _default_url(), key or _default_key()
    except ValidationError as error:
        fail(settings_message(error), is_json=is_json)
    if "://" not in url:
        url = f"http://{url}"
    try:
        with Client(url, key) as client:
            yield client
    except RequestRefused as error:
        fail(error.message, is_json=is_json, hint=_way_out(error, key), body=error.body, request_id=error.request_id)
    except ServerUnreachable as error:
        hint = "Start one here with `make run` or `headrace up`, or name another with --url."
        fail(f"{error}.", is_json=is_json, hint=hint)


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


def exit_as(job: dict[str, Any]) -> None:
    """End the command with code 3 when `job` has ended other than well."""
    if job["status"] not in ("queued", "running", "succeeded"):
        raise typer.Exit(EXIT_NOT_SUCCEEDED)


@contextmanager
def leaving(job_id: str) -> Iterator[None]:
    """While a job is watched: Ctrl-C says that the job goes on, and how to come back to it."""
    try:
        yield
    except KeyboardInterrupt:
        from api.commands.render import stderr

        print(file=sys.stderr)
        note = f"The job goes on. `headrace tail {job_id}` shows it again, `headrace cancel {job_id}` ends it."
        stderr().print(note, markup=False, highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _default_url() -> str:
    from db.settings import get_settings

    return f"http://127.0.0.1:{get_settings().port}"


def _default_key() -> str | None:
    from db.settings import get_settings

    settings = get_settings()
    if settings.api_key:
        return settings.api_key
    try:
        return (settings.data_dir / "api-key").read_text().strip() or None
    except OSError:
        return None


def _way_out(error: "RequestRefused", key: str | None) -> str | None:
    if error.status == 401:
        which = "another key" if key else "a key"
        return f"Give {which} with --key or HEADRACE_API_KEY, or run where HEADRACE_DATA_DIR holds its api-key."
    if error.code == "model_loading":
        return "`headrace status` shows when it is there."
    return None


def settings_message(error: Any) -> str:
    """The first thing that is wrong with the settings, in words."""
    first = error.errors()[0]
    return f"HEADRACE_{str(first['loc'][0]).upper()}: {first['msg'][:1].lower()}{first['msg'][1:]}."
