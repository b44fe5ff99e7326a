"""How Headrace is set up for the benchmark: the same settings for every workload, in process and through HTTP."""

import os
from pathlib import Path
from typing import Any

from db.settings import Settings
from tests.bench.speed.ceiling import Weights
from tests.bench.speed.child import Library, run_child
from tests.bench.speed.outcome import OnLine, Outcome
from tests.bench.speed.plan import Plan
from tests.servers import isolated_settings

PRECISIONS = {
    "bf16": Weights(layer_bits=16, head_bits=16, is_int8=False),
    "int8": Weights(layer_bits=8, head_bits=8, is_int8=True),
    "int4": Weights(layer_bits=4.5, head_bits=4.5, is_int8=True),  # with what its groups have
}
MAX_NUM_SEQS = 64
MAX_MODEL_LEN = 2048


def changes(data_dir: Path, checkpoint: Path, precision: str) -> dict[str, Any]:
    """Settings other than the defaults. In `data_dir` stay the packed weights: the second start finds them."""
    return {
        "data_dir": data_dir,
        "model": str(checkpoint),
        "model_name": checkpoint.name,
        "dtype": "bfloat16",
        "quantization": None if precision == "bf16" else precision,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_model_len": MAX_MODEL_LEN,
        "num_threads": os.cpu_count(),
    }


def make_settings(data_dir: Path, checkpoint: Path, precision: str) -> Settings:
    """Settings of an engine that is not a service: it has no stores."""
    settings = isolated_settings(data_dir, database_url="", redis_url="")
    return settings.model_copy(update=changes(data_dir, checkpoint, precision))


def run_engine(data_dir: Path, checkpoint: Path, precision: str, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
    """The outcome of the plan on the engine alone, in a process of its own."""
    arguments = {"data_dir": str(data_dir), "checkpoint": str(checkpoint), "precision": precision}
    library = Library("tests.bench.speed.inprocess:make_target", arguments)
    return run_child(library, plan, log, on_line, {})


def describe(precision: str) -> str:
    """The settings as a user would write them."""
    told = {name: value for name, value in changes(Path(), Path("MODEL"), precision).items() if value is not None}
    del told["data_dir"], told["model_name"]
    return " ".join(f"HEADRACE_{name.upper()}={value}" for name, value in told.items())
