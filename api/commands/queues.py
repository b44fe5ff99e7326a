"""`headrace queues` and `status`: how much work there is, and whether the service can do it."""

from typing import Any

import typer

from api.commands.connection import EXIT_ERROR, JsonOption, KeyOption, UrlOption, connect, print_json

SERVICE = "Service"  # heading in `headrace --help`


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (queues, status):
        app.command(rich_help_panel=SERVICE)(command)


def queues(is_json: JsonOption = False, url: UrlOption = None, key: KeyOption = None) -> None:
    """Show how many jobs wait and run, by model and tier.

    Queued jobs compete for a seat; parked ones wait until earlier ones of their key have started.

    Example: headrace queues
    """
    from api.commands.render import queue_table, stdout

    with connect(url, key, is_json=is_json) as client:
        data = client.queues()
    if is_json:
        print_json(data)
    elif not data:
        stdout().print("No job waits or runs.")
    else:
        stdout().print(queue_table(data))


def status(is_json: JsonOption = False, url: UrlOption = None, key: KeyOption = None) -> None:
    """Show whether the service is ready, its models and its queues.

    Exit code 1: it is not ready.

    Example: headrace status
    """
    from api.client import RequestRefused
    from api.commands.render import model_table, print_status, queue_table, stdout

    with connect(url, key, is_json=is_json) as client:
        readiness = client.readiness()
        models: list[dict[str, Any]] = []
        depths: list[dict[str, Any]] = []
        try:
            models, depths = client.models(), client.queues()
        except RequestRefused as error:
            if readiness.is_ready or error.status != 503:  # else the checks have said what is wrong
                raise
        server = client.url
    if is_json:
        facts = {"url": server, "is_ready": readiness.is_ready, "readiness": readiness.detail}
        print_json(facts | {"models": models, "queues": depths})
    else:
        print_status(readiness, server)
        for table in (model_table(models) if models else None, queue_table(depths) if depths else None):
            if table is not None:
                stdout().print()
                stdout().print(table)
    if not readiness.is_ready:
        raise typer.Exit(EXIT_ERROR)
