"""Everything that the full benchmark measures, under the names that its tables have."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.speed import headrace, peers
from tests.bench.speed.ceiling import Weights
from tests.bench.speed.checkpoints import make_checkpoint
from tests.bench.speed.environments import CannotInstall, Environment
from tests.bench.speed.outcome import OnLine, Outcome
from tests.bench.speed.places import IN_PROCESS, THROUGH_HTTP, name_of
from tests.bench.speed.plan import Plan
from tests.bench.speed.server import DidNotStart
from tests.bench.speed.service import run_service

WORKLOADS = ("W1", "W2", "W3", "W4", "W5")


@dataclass(frozen=True)
class Target:
    """One row. `measure` takes the checkpoints, the plan, a log and where to print."""

    name: str
    weights: Weights
    measure: Callable[[Path, Plan, Path, OnLine], Outcome]
    settings: str
    workload_names: tuple[str, ...] = WORKLOADS
    environment: Environment | None = None


def all_targets(directory: Path) -> list[Target]:
    """Headrace's first, then the peers'; `directory` is where everything is kept."""
    rows = []
    for precision, weights in headrace.PRECISIONS.items():
        for place, measure in (
            (IN_PROCESS, _engine(directory, precision)),
            (THROUGH_HTTP, _service(directory, precision)),
        ):
            name = name_of(f"Headrace {precision}", place)
            rows.append(Target(name, weights, measure, headrace.describe(precision)))
    for peer in peers.all_peers(directory / "peers"):
        rows.append(Target(peer.name, peer.weights, peer.measure, peer.settings, peer.workload_names, peer.environment))
    return rows


def measure_one(target: Target, checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
    """The outcome of a plan; one that says why where the target cannot be installed or started."""
    try:
        if target.environment is not None:
            target.environment.prepare()
        return target.measure(checkpoints, plan, log, on_line)
    except (CannotInstall, DidNotStart) as error:
        return Outcome(error=str(error))
    except Exception as error:  # one that fails must not cost the others their figures
        return Outcome(error=f"{type(error).__name__}: {error}"[:300])


def _engine(directory: Path, precision: str) -> Callable[[Path, Plan, Path, OnLine], Outcome]:
    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        checkpoint = make_checkpoint(checkpoints, plan.shape)
        return headrace.run_engine(directory / "data", checkpoint, precision, plan, log, on_line)

    return measure


def _service(directory: Path, precision: str) -> Callable[[Path, Plan, Path, OnLine], Outcome]:
    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        return run_service(directory / "data", make_checkpoint(checkpoints, plan.shape), precision, plan, on_line)

    return measure
