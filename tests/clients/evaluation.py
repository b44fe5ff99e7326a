"""lm-eval and its `local-completions`: which of the endings does the model find likeliest?

It sends a beginning with each ending as token ids and asks for the log probabilities of what it sent.
"""

import json
from pathlib import Path

from tests.bench.speed.environments import TRANSFORMERS, Environment
from tests.clients.client import Client, ClientFailed, Finding, Service, run_program
from tests.clients.word_order import NUM_CHOICES, NUM_ITEMS, TASK, write_items

LM_EVAL = "0.4.13"
BY_CHANCE = 1 / NUM_CHOICES
NUM_CONCURRENT = 4
MAX_TOKENS = 2048


def make_client(home: Path) -> Client:
    """It is installed below `home`."""
    workload = f"{NUM_ITEMS} sentences, each with {NUM_CHOICES} orders of its last words"
    return Client(f"lm-eval {LM_EVAL}", workload, Environment(home / "lm-eval", _install), _ask)


def _ask(program: Environment, service: Service, directory: Path) -> Finding:
    write_items(directory)
    arguments = {
        "model": service.model,
        "base_url": f"{service.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": service.tokenizer,
        "num_concurrent": NUM_CONCURRENT,
        "max_length": MAX_TOKENS,
    }
    model = ("--model", "local-completions", "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()))
    task = ("--tasks", TASK.stem, "--include_path", TASK.parent, "--output_path", "results")
    run_program(program, "lm_eval", ("run", *model, *task), directory=directory, OPENAI_API_KEY=service.key)
    found = list((directory / "results").rglob("results_*.json"))
    if len(found) != 1:
        raise ClientFailed(f"lm_eval ended well, and left {len(found)} files of results")
    return _read(json.loads(found[0].read_text()))


def _read(found: dict[str, dict[str, dict[str, float]]]) -> Finding:
    accuracy, num_items = found["results"][TASK.stem]["acc,none"], found["n-samples"][TASK.stem]["effective"]
    is_sound = num_items == NUM_ITEMS and accuracy > 2 * BY_CHANCE
    result = f"acc {accuracy:.3f}, by chance {BY_CHANCE:.2f}"
    return Finding(result, None if is_sound else f"of {num_items} items, {result}")


def _install(program: Environment) -> None:
    program.make_venv()
    program.pip("install", f"lm_eval[api]=={LM_EVAL}", f"transformers=={TRANSFORMERS}")
