"""Measures a target that is a library, in a process of its own: its memory and its threads are nobody else's.

The process may have another interpreter, that of a peer's environment. It needs nothing but this package and the
target's module.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.speed.memory import PeakMemory
from tests.bench.speed.outcome import OnLine, Outcome, measure_target
from tests.bench.speed.plan import Plan

ROOT = Path(__file__).parents[3]
RESULT = "RESULT "  # before the outcome, on standard output


@dataclass(frozen=True)
class Library:
    """A function `module:name` that makes a target, and what to give it."""

    maker: str
    arguments: dict[str, Any]
    python: Path = Path(sys.executable)


def run_child(library: Library, plan: Plan, log: Path, on_line: OnLine, environment: Mapping[str, str]) -> Outcome:
    """The outcome of the plan; with an error when the child ends without one, whose last words are in `log`."""
    words = json.dumps({"maker": library.maker, "arguments": library.arguments, "plan": asdict(plan)})
    command = [str(library.python), "-m", "tests.bench.speed.child", words]
    outcome = Outcome(error=f"the child ended without a result, see {log.name}")
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
        PeakMemory(process.pid) as memory,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(RESULT):
                outcome = Outcome.of(json.loads(line.removeprefix(RESULT)))
            else:
                on_line(line.rstrip())
    outcome.peak_megabytes = memory.megabytes
    return outcome


def main() -> None:
    """What the child does."""
    words = json.loads(sys.argv[1])
    module, _, name = words["maker"].partition(":")
    plan = Plan(**words["plan"] | {"workload_names": tuple(words["plan"]["workload_names"])})
    began = time.perf_counter()
    target = getattr(importlib.import_module(module), name)(**words["arguments"])
    outcome = Outcome(startup_seconds=time.perf_counter() - began)
    measure_target(target, plan, outcome, lambda line: print(line, flush=True))
    print(RESULT + json.dumps(outcome.as_json()), flush=True)
    os._exit(0)  # a library's threads may not end with it


if __name__ == "__main__":
    main()
