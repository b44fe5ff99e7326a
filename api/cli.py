"""The `headrace` command line. Commands import what they need when they run, so that `--help` is quick."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from api.commands import batch, dead, jobs, keys, processes, queues, submit

app = typer.Typer(
    name="headrace",
    help="Queued inference for language models: nothing lost, nobody starved.",
    epilog="Start with `headrace up`, then: headrace submit --tail 'Once upon a time'",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal's encoding has not
    app()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


submit.register(app)
jobs.register(app)
batch.register(app)
dead.register(app)
queues.register(app)
keys.register(app)
processes.register(app)

if __name__ == "__main__":
    main()
