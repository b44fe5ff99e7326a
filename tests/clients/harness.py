"""`make clients`: two clients that nobody here wrote, each from its own package, in front of the service.

They are installed on the first call. Without `--url` the service is one of their own: durable stores, the API and a
worker with the demo model.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
from sqlalchemy import text

from tests.bench import machine
from tests.bench.quick import DIRECTORY
from tests.bench.stack import run_stack
from tests.clients import evaluation, load
from tests.clients.client import Client, Finding, Service

HOME = DIRECTORY / "clients"
FIRST_START_SECONDS = 600.0
TOKENIZER = text("SELECT tokenizer_path FROM workers ORDER BY started_at DESC LIMIT 1")


def main() -> int:
    """Run both, print a table, and say by the exit code whether all was well."""
    options = _parse()
    clients = [evaluation.make_client(HOME), load.make_client(HOME)]
    for client in clients:
        client.program.prepare()
    with _running() if options.url is None else contextlib.nullcontext(_found(options)) as service:
        findings = [client.find(service) for client in clients]
    print("\n".join((*machine.describe(), "", render(service.model, clients, findings))))
    return any(finding.problem for finding in findings)


def render(model: str, clients: list[Client], findings: list[Finding]) -> str:
    """The table, and below it what was wrong."""
    rows = ["| client | what it sends | what it found |", "|---|---|---|"]
    rows += [
        f"| {client.name} | {client.workload}, to {model} | {finding.result} |"
        for client, finding in zip(clients, findings, strict=True)
    ]
    return "\n".join(rows + [finding.problem for finding in findings if finding.problem])


@contextlib.contextmanager
def _running() -> Iterator[Service]:
    """A service that serves the demo model, which its first worker makes ready to be read fast."""
    data_dir = HOME / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    changes = {"data_dir": data_dir, "model": None, "model_name": None, "num_threads": os.cpu_count()}
    with run_stack(**changes) as stack, stack.worker(patience_seconds=FIRST_START_SECONDS):
        with stack.engine.connect() as connection:
            tokenizer = Path(connection.execute(TOKENIZER).scalar_one()).parent
        url = f"http://127.0.0.1:{stack.settings.port}"
        yield Service(url, stack.keys[0], stack.settings.served_name, tokenizer)


def _found(options: argparse.Namespace) -> Service:
    """The service at the URL, and its first model."""
    url, headers = options.url.rstrip("/"), {"Authorization": f"Bearer {options.key}"}
    models = httpx.get(f"{url}/v1/models", headers=headers).raise_for_status().json()["data"]
    return Service(url, options.key, models[0]["id"], options.tokenizer.resolve())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Clients from other packages, in front of Headrace.")
    parser.add_argument("--url", help="of a service that runs, such as http://127.0.0.1:8000")
    parser.add_argument("--key", default=os.environ.get("HEADRACE_API_KEY"), help="its API key")
    parser.add_argument("--tokenizer", type=Path, help="the directory of its model")
    options = parser.parse_args()
    if options.url is not None and (options.key is None or options.tokenizer is None):
        parser.error("--url needs --key and --tokenizer")
    return options


if __name__ == "__main__":
    sys.exit(main())
