"""The whole speed benchmark: `make bench`. Headrace and its peers, three seeds; writes RESULTS.md beside this file.

A run takes hours. What was measured is kept as it comes, and the tables are made of everything that is there: `--add`
goes on with the targets and seeds that are named.
"""

import argparse
import json
import os
import shlex
import signal
import sys
from pathlib import Path

from tests.bench import machine
from tests.bench.quick import DIRECTORY
from tests.bench.speed import bar, table
from tests.bench.speed.ceiling import Ceiling, measure_ceiling
from tests.bench.speed.environments import VERSIONS
from tests.bench.speed.outcome import Outcome
from tests.bench.speed.places import THROUGH_HTTP, name_of
from tests.bench.speed.plan import Plan
from tests.bench.speed.progress import Progress
from tests.bench.speed.shapes import SHAPES
from tests.bench.speed.table import Row
from tests.bench.speed.targets import WORKLOADS, Target, all_targets, measure_one

RESULTS = Path(__file__).with_name("RESULTS.md")
OUTCOMES = DIRECTORY / "outcomes"
BASE = name_of("vLLM bf16", THROUGH_HTTP)  # what the ratios are to


def main() -> None:
    """Measure one target after the other, and write the tables after each."""
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended on the way out
    targets = all_targets(DIRECTORY)
    chosen = [target for target in targets if not options.only or target.name in options.only]
    assert chosen, f"--only names none of {[target.name for target in targets]}"
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    if not options.add:
        _forget(options.shapes, {target.name for target in chosen})
    say, ceiling = Progress(), measure_ceiling(os.cpu_count() or 1)
    for shape_name in options.shapes:
        for seed in options.seeds:  # the outermost, so that what disturbs the machine disturbs everybody
            for target in chosen:
                plan = Plan(
                    shape_name, tuple(each for each in options.workloads if each in target.workload_names), seed
                )
                if plan.workload_names:
                    measure(target, plan, say)
                    RESULTS.write_text(render(targets, ceiling))
    print(RESULTS.read_text())


def _forget(shape_names: list[str], target_names: set[str]) -> None:
    """Remove what was measured before of what is to be measured now: the rest took hours."""
    for file in OUTCOMES.glob("*.json"):
        kept = json.loads(file.read_text())
        if kept["shape"] in shape_names and kept["target"] in target_names:
            file.unlink()


def measure(target: Target, plan: Plan, say: Progress) -> None:
    """Measure it and keep the outcome."""
    told = f"{plan.shape_name}, seed {plan.seed}, {target.name}"
    say(f"{told}: starting")
    name = f"{plan.shape_name} {plan.seed} {target.name}".replace(" ", "-")
    outcome = measure_one(
        target, DIRECTORY / "checkpoints", plan, DIRECTORY / "target.log", lambda line: say(f"{told}, {line}")
    )
    if outcome.error:
        say(f"{told}: {outcome.error}")
    words = {"shape": plan.shape_name, "seed": plan.seed, "target": target.name, "outcome": outcome.as_json()}
    (OUTCOMES / f"{name}.json").write_text(json.dumps(words))


def render(targets: list[Target], ceiling: Ceiling | None) -> str:
    """RESULTS.md of all outcomes that are kept."""
    kept = [json.loads(file.read_text()) for file in sorted(OUTCOMES.glob("*.json"))]
    parts = ["# Headrace and its peers on one machine", "\n".join(f"- {line}" for line in _heading(ceiling))]
    for shape_name in SHAPES:
        found = [each for each in kept if each["shape"] == shape_name]
        if found:
            rows = [_row(target, found) for target in targets if any(each["target"] == target.name for each in found)]
            parts.extend(_section(shape_name, rows, ceiling))
    parts.append("## Settings")
    parts.append("\n".join(f"- {target.name}: `{target.settings}`" for target in targets))
    return "\n\n".join(parts) + "\n"


def _row(target: Target, found: list[dict[str, object]]) -> Row:
    return Row(target, [Outcome.of(each["outcome"]) for each in found if each["target"] == target.name])  # type: ignore[arg-type]


def _section(shape_name: str, rows: list[Row], ceiling: Ceiling | None) -> list[str]:
    parts = [f"## {shape_name}", "Medians over the seeds.", table.absolute(rows), "What is wanted, and reached."]
    parts.append(bar.bar(rows))
    base = next((row for row in rows if row.target.name == BASE and row.runs), None)
    if base is not None:
        parts += [f"How many times better than {BASE}:", table.ratios(rows, base)]
    if ceiling is not None:
        parts += ["Share of what the machine allows:", table.shares(rows, SHAPES[shape_name], ceiling, "0")]
    if any(len(row.runs) > 1 for row in rows):
        parts += ["Range over the seeds, of the median:", table.spread(rows)]
    return parts


def _heading(ceiling: Ceiling | None) -> list[str]:
    return [
        *machine.describe(),
        f"peers: {VERSIONS}",
        f"command: `{shlex.join(['python', '-m', 'tests.bench.full', *sys.argv[1:]])}`",
        f"ceiling of all cores, with huge pages: {ceiling or 'not known without gcc'}",
        f"load average {machine.load_average():.1f}; noise is what other processes took, in percent of a core",
        "random weights in the shape named, the same prompts for everybody as token ids, greedy, no end of sequence",
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Headrace and its peers.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--only", nargs="+", help="names of targets, as the table has them")
    parser.add_argument(
        "--add", action="store_true", help="keep what was measured before of the targets that are measured"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
