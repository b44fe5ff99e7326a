"""guidellm: streams that each send the next completion when the last has ended, for a while."""

import json
from pathlib import Path
from typing import Any

from tests.bench.speed.environments import TORCH, TRANSFORMERS, Environment
from tests.clients.client import Client, ClientFailed, Finding, Service, run_program

GUIDELLM = "0.8.1"
NUM_STREAMS = 8
SECONDS = 30
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64


def make_client(home: Path) -> Client:
    """It is installed below `home`."""
    workload = f"{NUM_STREAMS} streams for {SECONDS} s, {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out"
    return Client(f"guidellm {GUIDELLM}", workload, Environment(home / "guidellm", _install), _ask)


def _ask(program: Environment, service: Service, directory: Path) -> Finding:
    report = directory / "report.json"
    options: dict[str, dict[str, Any]] = {
        "backend": {
            "kind": "openai_http",
            "target": service.url,
            "api_key": service.key,
            "model": service.model,
            "request_format": "/v1/completions",
        },
        "tokenizer": {"kind": "huggingface_auto", "model": str(service.tokenizer)},
        "data": {"kind": "synthetic_text", "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        "profile": {"kind": "concurrent", "streams": [NUM_STREAMS]},
        "constraint": {"kind": "max_duration", "seconds": SECONDS},
        "output": {"kind": "json", "path": str(report)},
    }
    words = [word for name, value in options.items() for word in (f"--{name}", json.dumps(value))]
    arguments = ("run", *words, "--disable-console-interactive")
    run_program(program, "guidellm", arguments, directory=directory, GUIDELLM__MAX_WORKER_PROCESSES="1")
    if not report.exists():
        raise ClientFailed("guidellm ended well, and left no report")
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return _read(benchmark["metrics"])


def _read(metrics: dict[str, Any]) -> Finding:
    """Rates are means over time and latencies medians, of the completions that came whole."""
    num_whole, num_failed = metrics["request_totals"]["successful"], metrics["request_totals"]["errored"]
    if not num_whole or num_failed:
        return Finding("failed", f"{num_whole} completions came whole, {num_failed} failed")
    tokens = metrics["output_tokens_per_second"]["successful"]["mean"]
    first, between = (
        metrics[f"{what}_ms"]["successful"]["median"] for what in ("time_to_first_token", "inter_token_latency")
    )
    latencies = f"a first token after {first:.0f} ms, then one every {between:.1f} ms"
    return Finding(f"{num_whole} completions, none failed; {tokens:.0f} tokens/s, {latencies}")


def _install(program: Environment) -> None:
    program.make_venv()
    program.pip("install", f"guidellm=={GUIDELLM}", f"torch=={TORCH}", f"transformers=={TRANSFORMERS}")
