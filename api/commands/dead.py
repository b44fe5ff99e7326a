"""`headrace dead` and `replay`: the jobs that were given up, and submitting them again."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.connection import EXIT_NOT_SUCCEEDED, JOBS, JsonOption, KeyOption, UrlOption, connect, print_json
from api.commands.submit import name_and_value

if TYPE_CHECKING:
    from api.client import Headrace, Replay

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="Only jobs of this model.")]
TierOption = Annotated[str | None, typer.Option("--tier", "-t", help="Only jobs of this tier.")]
MetadataOption = Annotated[list[str] | None, typer.Option(help="Only jobs with KEY=VALUE; may be repeated.")]
SinceOption = Annotated[str | None, typer.Option(help="Only jobs that ended since: `2h` ago, or an RFC 3339 time.")]
UntilOption = Annotated[str | None, typer.Option(help="Only jobs that ended before: `10m` ago, or an RFC 3339 time.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (dead, replay):
        app.command(rich_help_panel=JOBS)(command)


def dead(
    model: ModelOption = None,
    tier: TierOption = None,
    metadata: MetadataOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Also those that were replayed.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most jobs to show.")] = 100,
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List dead jobs: why they were given up, after how many crashes, and on which workers.

    The newest first, without those that were replayed. With --json every job is a line.

    Example: headrace dead --since 2h
    """
    from api.commands.render import dead_table, stdout

    wanted = _filter(model, tier, metadata, since, until) | ({} if replayed else {"replayed": False})
    with connect(url, key, is_json=is_json) as client:
        jobs = list(client.jobs(status="dead", limit=limit, **wanted))
    if is_json:
        for job in jobs:
            print_json(job)
    elif not jobs:
        stdout().print("No job is dead.")
    else:
        stdout().print(dead_table(jobs))


def replay(
    job_ids: Annotated[list[str] | None, typer.Argument(help="Ids of the jobs.", metavar="JOB...")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job that matches the options below.")] = False,
    status: Annotated[str, typer.Option(help="How the jobs ended.")] = "dead",
    model: ModelOption = None,
    tier: TierOption = None,
    metadata: MetadataOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    replayed: Annotated[bool, typer.Option("--replayed", help="Also those that were replayed before.")] = False,
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Submit ended jobs again: by id, or with --all those that match.

    Prints the id of each job and of its replay. Exit code 3: some were refused.

    Example: headrace replay job_0193e4c2a1b47c3d8e5f60718293a4b5

    Example: headrace replay --all --model gemma-3-270m --since 2h
    """
    if every == bool(job_ids):
        raise typer.BadParameter("give ids, or --all", param_hint="JOB")
    wanted = _filter(model, tier, metadata, since, until)
    if job_ids and (wanted or replayed or status != "dead"):
        raise typer.BadParameter("filters need --all", param_hint="JOB")
    wanted |= {"status": status, "include_replayed": replayed}
    with connect(url, key, is_json=is_json, is_patient=True) as client:
        outcomes = client.replay_all(**wanted) if every else _replay_each(client, job_ids or [])
        _show(outcomes, is_json=is_json)


def _show(outcomes: Iterator["Replay"], *, is_json: bool) -> None:
    """Print each as it is done; code 3 when some were refused."""
    from api.commands.render import stderr, stdout

    num_done = num_refused = 0
    for outcome in outcomes:
        num_done += outcome["replay_id"] is not None
        num_refused += outcome["replay_id"] is None
        if is_json:
            print_json(outcome)
        elif outcome["replay_id"] is not None:
            stdout().print(f"{outcome['job_id']}  {outcome['replay_id']}")
        elif outcome["error"] is not None:
            stderr().print(f"{outcome['job_id']}  {outcome['error']['message']}", style="red", markup=False)
    if not is_json:
        refused = f", {num_refused:,} refused" if num_refused else ""
        stderr().print(f"{num_done:,} replayed{refused}", style="dim")
    if num_refused:
        raise typer.Exit(EXIT_NOT_SUCCEEDED)


def _replay_each(client: "Headrace", job_ids: list[str]) -> Iterator["Replay"]:
    for job_id in job_ids:
        job = client.replay(job_id)
        yield {"job_id": job_id, "replay_id": job["id"], "error": None}


def _filter(
    model: str | None, tier: str | None, metadata: list[str] | None, since: str | None, until: str | None
) -> dict[str, Any]:
    """The options that were given, as the client's filters."""
    given = {
        "model": model,
        "tier": tier,
        "since": since and _moment(since, "--since"),
        "until": until and _moment(until, "--until"),
        "metadata": dict(name_and_value(each, "--metadata") for each in metadata or []) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _moment(text: str, option: str) -> str:
    """RFC 3339 of a time ago, such as `90s`, `10m`, `2h` or `7d`; other text is the server's to judge."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago is None:
        return text
    try:
        return (datetime.now(UTC) - timedelta(seconds=int(ago[1]) * SECONDS[ago[2]])).isoformat()
    except OverflowError:
        raise typer.BadParameter(f"'{text}' is before all time", param_hint=option) from None
