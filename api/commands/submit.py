"""`headrace submit`: a job from the command line."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.connection import JOBS, JsonOption, KeyOption, UrlOption, connect, exit_as, leaving, print_json

if TYPE_CHECKING:
    from api.client import Headrace, Job


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(rich_help_panel=JOBS)(submit)


def submit(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; `-`, or nothing with a pipe, reads stdin.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Default: the first that is ready.")] = None,
    chat: Annotated[bool, typer.Option("--chat", "-c", help="Send it as a chat message.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message before it; implies --chat.")] = None,
    tier: Annotated[str, typer.Option("--tier", "-t", help="high, normal or low.")] = "normal",
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", help="Most tokens to write.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token each time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds write equal text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")] = None,
    webhook_url: Annotated[str | None, typer.Option(help="Told when the job ends.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of your own; may be repeated.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=JSON: any other field of POST /v1/jobs; may be repeated.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end and print the text.")] = False,
    tail: Annotated[bool, typer.Option("--tail", "-f", help="Print the text as it is written.")] = False,
    is_json: JsonOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Submit a job and print its id.

    Exit code 3: waited for, and it did not succeed.

    Example: headrace submit --tail -n 64 "The water comes down the hill"

    Example: headrace submit --chat --tier low --set run_for=60 < question.txt
    """
    text = _read_prompt(prompt)
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
    given = {
        "model": model,
        "tier": tier,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop,
        "webhook_url": webhook_url,
        "metadata": dict(name_and_value(pair, "--metadata") for pair in metadata or []),
        **({"messages": messages} if chat or system else {"prompt": text}),
        **{field: _json_value(value) for field, value in (name_and_value(pair, "--set") for pair in set_ or [])},
    }
    body = {field: value for field, value in given.items() if value not in (None, {}, [])}
    with connect(url, key, is_json=is_json, is_patient=True) as client:
        job = client.submit(**body)
        with leaving(job["id"]):
            _follow(client, job, wait=wait, tail=tail, is_json=is_json)


def _follow(client: "Headrace", job: "Job", *, wait: bool, tail: bool, is_json: bool) -> None:
    """Show the accepted job in the way that was asked for."""
    from api.commands.progress import stream_text, wait_for_end
    from api.commands.render import stderr, summary, waiting_line, write_output

    if is_json:
        if wait or tail:
            job = client.wait(job["id"])
        print_json(job)
        exit_as(job)
    elif tail:
        stderr().print(job["id"], style="dim")
        exit_as(stream_text(client, job["id"]))
    elif wait:
        stderr().print(job["id"], style="dim")
        job = wait_for_end(client, job["id"])
        if job["output"]:
            write_output(job["output"]["text"].rstrip("\n") + "\n")
        stderr().print(summary(job))
        exit_as(job)
    else:
        print(job["id"])
        stderr().print(f"{waiting_line(job)}; `headrace tail {job['id']}` shows it", style="dim", markup=False)


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one in", param_hint="PROMPT")
    return sys.stdin.read()


def name_and_value(text: str, option: str) -> tuple[str, str]:
    """The two sides of `NAME=VALUE`."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"'{text}' must be NAME=VALUE", param_hint=option)
    return name, value


def _json_value(text: str) -> Any:
    """`text` as JSON where it is that (`0.9`, `true`, `[1, 2]`), else as the text it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
