"""What one run of a target measures."""

from dataclasses import dataclass

from tests.bench.speed.shapes import SHAPES, Shape
from tests.bench.speed.workloads import Workload, make_suite, make_warm_up


@dataclass(frozen=True)
class Plan:
    """A model's shape, the workloads by name, and the seed of their prompts."""

    shape_name: str
    workload_names: tuple[str, ...]
    seed: str = "0"

    @property
    def shape(self) -> Shape:
        return SHAPES[self.shape_name]

    def warm_up(self) -> list[Workload]:
        return make_warm_up(self.seed)

    def workloads(self) -> list[Workload]:
        return make_suite(self.seed, self.workload_names, per_second=self.shape.w3_per_second)
