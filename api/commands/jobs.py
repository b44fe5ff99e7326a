"""`headrace get`, `tail` and `cancel`: what one does with a job that was submitted."""

from typing import Annotated

import typer

from api.commands.connection import (
    JOBS,
    JobId,
    JsonOption,
    KeyOption,
    UrlOption,
    connect,
    exit_as,
    leaving,
    print_json,
)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (get, tail, cancel):
        app.command(rich_help_panel=JOBS)(command)


def get(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until it has ended.")] = False,
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show a job: its place in line, or what came of it.

    Exit code 3: it has ended and did not succeed.

    Example: headrace get --wait --json job_0193e4c2a1b47c3d8e5f60718293a4b5
    """
    from api.commands.progress import wait_for_end
    from api.commands.render import print_job

    with connect(url, key, is_json=is_json, is_patient=wait) as client, leaving(job_id):
        if not wait:
            job = client.get(job_id)
        elif is_json:
            job = client.wait(job_id)
        else:
            job = wait_for_end(client, job_id)
    if is_json:
        print_json(job)
    else:
        print_job(job)
    exit_as(job)


def tail(
    job_id: JobId,
    after: Annotated[
        int | None, typer.Option(min=0, help="With --json: only the events beyond this number (resumes a stream).")
    ] = None,
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print a job's text as it is written.

    From the beginning, also for a job that has ended; goes on when the server or a worker is restarted meanwhile.
    With --json every event is a line. Exit code 3: the job did not succeed.

    Example: headrace tail job_0193e4c2a1b47c3d8e5f60718293a4b5
    """
    if after is not None and not is_json:
        raise typer.BadParameter("needs --json: text is printed from the beginning", param_hint="--after")
    from api.commands.progress import stream_text

    with connect(url, key, is_json=is_json, is_patient=True) as client, leaving(job_id):
        if not is_json:
            exit_as(stream_text(client, job_id))
            return
        for event in client.events(job_id, after=after):
            print_json({"id": event.number, "event": event.type, "data": event.data})
            if event.is_end:
                exit_as(event.data)


def cancel(
    ids: Annotated[list[str], typer.Argument(help="Ids of jobs, or of batches.", metavar="JOB...")],
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Cancel jobs, or batches.

    What they wrote is kept. What has ended stays as it is.

    Example: headrace cancel job_0193e4c2a1b47c3d8e5f60718293a4b5
    """
    from api.commands.render import headline, stdout

    with connect(url, key, is_json=is_json) as client:
        for each in ids:
            ended = client.get_batch(each).cancel() if each.startswith("batch_") else client.cancel(each)
            if is_json:
                print_json(ended)
            else:
                stdout().print(headline(ended) if ended["object"] == "job" else f"{ended['status']}  {each}")
