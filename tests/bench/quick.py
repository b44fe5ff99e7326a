"""The short speed benchmark: `make bench-quick`. Headrace alone on the SmolLM-135M shape; the last line is JSON."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.speed.ceiling import Bounds, Ceiling, measure_ceiling
from tests.bench.speed.checkpoints import make_checkpoint
from tests.bench.speed.headrace import PRECISIONS, run_engine
from tests.bench.speed.plan import Plan
from tests.bench.speed.progress import Progress
from tests.bench.speed.service import run_service
from tests.bench.speed.shapes import SMOLLM

DIRECTORY = machine.ROOT / ".headrace" / "bench"
DATA = DIRECTORY / "data"
PLAN = Plan(SMOLLM.name, ("W1", "W2", "W5"))


def main() -> None:
    """Measure, print each figure as it comes, and all of them at the end."""
    say = Progress()
    for line in machine.describe():
        say(line)
    checkpoint = make_checkpoint(DIRECTORY / "checkpoints", SMOLLM)
    ceiling = measure_ceiling(os.cpu_count() or 1)
    say(f"ceiling: {ceiling or 'not known without gcc'}")
    found: dict[str, Any] = {"commit": machine.commit(), "load_before": machine.load_average()}
    found["ceiling"] = asdict(ceiling) if ceiling else None
    for precision in ("bf16", "int8"):
        found[precision] = measure(checkpoint, precision, ceiling, say)
    found |= {"load_after": machine.load_average(), "seconds": round(say.seconds)}
    print(json.dumps(found))


def measure(checkpoint: Path, precision: str, ceiling: Ceiling | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures of one precision, in process and through HTTP, and the bounds that the machine sets."""
    say(f"{precision}, in process: the model is loaded")
    told, log = f"{precision}, in process", DIRECTORY / "engine.log"
    in_process = run_engine(DATA, checkpoint, precision, PLAN, log, lambda line: say(f"{told}, {line}"))
    say(f"{precision}, through HTTP: the processes are started")
    told = f"{precision}, through HTTP"
    through_http = run_service(DATA, checkpoint, precision, PLAN, lambda line: say(f"{told}, {line}"))
    found = {"in_process": in_process.as_json(), "through_http": through_http.as_json()}
    if ceiling is not None:
        bounds = Bounds(SMOLLM, PRECISIONS[precision], ceiling)
        found["bounds"] = {workload.name: bounds.figures(workload) for workload in PLAN.workloads()}
    return found


if __name__ == "__main__":
    main()
