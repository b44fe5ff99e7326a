"""What the machine can do at most, and the time that a workload takes at least, whoever computes it."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.speed.shapes import Shape
from tests.bench.speed.workloads import NUM_SHARED, Job, Mode, Workload

SOURCE = Path(__file__).with_name("ceilings.c")
COMPILE = ("gcc", "-O3", "-march=native", "-fopenmp", "-w")
NUM_RUNS = 3  # a ceiling is the best that was seen
KV_BYTES = 2  # of a number in the KV cache


@dataclass(frozen=True)
class Ceiling:
    """Of all cores together; 0 for what this processor has no instructions for, though bfloat16 may be widened."""

    read_gb_per_s: float
    f32_gflops: float
    bf16_gflops: float
    int8_gops: float


@dataclass(frozen=True)
class Weights:
    """How a model's weights lie in memory, and what multiplies them."""

    layer_bits: float
    head_bits: float
    is_int8: bool  # whether activations are int8 too


def measure_ceiling(num_threads: int) -> Ceiling | None:
    """A few seconds. None without a C compiler."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "ceilings"
        try:
            subprocess.run([*COMPILE, SOURCE, "-o", program], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "OMP_PROC_BIND": "true"}
        runs = [json.loads(subprocess.check_output([program], env=environment)) for _ in range(NUM_RUNS)]
    return Ceiling(**{name: max(run[name] for run in runs) for name in runs[0]})


@dataclass(frozen=True)
class Bounds:
    """Bounds for one model on one machine: what is computed at the peak, or read at the bandwidth, whichever is longer.

    They count matrices, attention, and the reading of weights and KV cache; nothing else.
    """

    shape: Shape
    weights: Weights
    ceiling: Ceiling

    def figures(self, workload: Workload) -> dict[str, float]:
        """The best that the workload's figures could be, for those that have such a bound."""
        jobs = workload.jobs
        if workload.mode is Mode.ONE_BY_ONE:
            num_prompt, num_output = len(jobs[0].prompt), jobs[0].max_tokens
            token_bytes = self.weight_bytes + (num_prompt + num_output / 2) * self.kv_bytes
            prompt_seconds = max(self._compute(num_prompt, 1), self.read_seconds(self.weight_bytes))
            return {"ttft_p50_ms": prompt_seconds * 1000, "itl_p50_ms": self.read_seconds(token_bytes) * 1000}
        if workload.mode is not Mode.TOGETHER:
            return {}
        seconds = self._together(jobs, workload.name)
        num_output = sum(job.max_tokens for job in jobs)
        num_all = num_output + sum(len(job.prompt) for job in jobs)
        return {"out_tokens_per_s": num_output / seconds, "total_tokens_per_s": num_all / seconds}

    def _together(self, jobs: list[Job], name: str) -> float:
        """A beginning that prompts share is computed once when it is cold, and not at all when it is warm."""
        num_cached = NUM_SHARED if name.startswith("W4") else 0
        compute = sum(self._compute(len(job.prompt), job.max_tokens, num_cached) for job in jobs)
        if name == "W4 cold":
            compute += self._compute(NUM_SHARED, 0)
        num_contexts = sum(job.max_tokens * (len(job.prompt) + job.max_tokens / 2) for job in jobs)
        num_steps = max(job.max_tokens for job in jobs)
        return max(compute, self.read_seconds(num_steps * self.weight_bytes + num_contexts * self.kv_bytes))

    def _compute(self, num_prompt: int, num_output: int, num_cached: int = 0) -> float:
        """Seconds at the peak. The last output token is never fed back."""
        num_tokens = num_prompt + max(0, num_output - 1)
        pairs = (num_tokens**2 - num_cached**2) / 2
        matrices = self.shape.layer_weights * (num_tokens - num_cached) + self.shape.head_weights * num_output
        attention = 2 * self.shape.num_layers * self.shape.num_heads * self.shape.head_dim * pairs
        peak = self.ceiling.int8_gops if self.weights.is_int8 else self.ceiling.bf16_gflops
        floats = self.ceiling.bf16_gflops or self.ceiling.f32_gflops
        return 2 * (matrices / (peak or floats) + attention / floats) / 1e9 if floats else 0.0

    def read_seconds(self, num_bytes: float) -> float:
        """What so many bytes take to be read."""
        return num_bytes / self.ceiling.read_gb_per_s / 1e9

    @property
    def weight_bytes(self) -> float:
        """All weights that a token is multiplied by."""
        layers = self.shape.layer_weights * self.weights.layer_bits
        return (layers + self.shape.head_weights * self.weights.head_bits) / 8

    @property
    def kv_bytes(self) -> int:
        """What a token has in the KV cache."""
        return self.shape.kv_values * KV_BYTES
