"""The engines that Headrace is measured beside, each set up as its documentation says for one small machine."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.speed import environments
from tests.bench.speed.ceiling import Weights
from tests.bench.speed.checkpoints import make_checkpoint
from tests.bench.speed.child import Library, run_child
from tests.bench.speed.environments import Environment
from tests.bench.speed.gguf_file import make_gguf
from tests.bench.speed.outcome import OnLine, Outcome
from tests.bench.speed.places import IN_PROCESS, THROUGH_HTTP, name_of
from tests.bench.speed.plan import Plan
from tests.bench.speed.server import Server, run_server

NUM_THREADS = os.cpu_count() or 1
BF16 = Weights(layer_bits=16, head_bits=16, is_int8=False)
FP32 = Weights(layer_bits=32, head_bits=32, is_int8=False)  # what a processor without bfloat16 multiplies faster
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
VLLM_OPTIONS: dict[str, str | int] = {"max_model_len": 2048, "max_num_seqs": 64}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
# A slot for each job that runs at once, each with room for the longest.
LLAMA_OPTIONS = ("-np", "32", "-c", "65536", "-fa", "on", "--cache-ram", "0", "--no-webui")


@dataclass(frozen=True)
class Peer:
    """An engine and how it is run. `options` are what was added to its first settings."""

    name: str
    weights: Weights
    environment: Environment
    measure: Callable[[Path, Plan, Path, OnLine], Outcome]  # (checkpoints, plan, log, lines)
    settings: str
    workload_names: tuple[str, ...] = ("W1", "W2", "W3", "W4", "W5")


def all_peers(directory: Path) -> list[Peer]:
    """In the order in which they are measured; `directory` is where they are installed."""
    vllm = Environment(directory / "vllm", environments.install_vllm)
    llama = Environment(directory / "llama.cpp", environments.install_llama_cpp)
    transformers = Environment(directory / "transformers", environments.install_transformers)
    w8a8 = Weights(layer_bits=8, head_bits=16, is_int8=True)
    return [
        _vllm(vllm, "vLLM bf16", BF16),
        _vllm(vllm, "vLLM W8A8", w8a8),
        _vllm(vllm, "vLLM fp32", FP32, dtype="float32"),
        _vllm_engine(vllm, "vLLM bf16", BF16),
        _vllm_engine(vllm, "vLLM W8A8", w8a8),
        _vllm(vllm, "vLLM bf16", BF16, "--max-num-batched-tokens", "256", tuning=("steps of 256",)),
        _llama(llama, "llama.cpp bf16", "bf16", BF16),
        _llama(llama, "llama.cpp q8_0", "q8_0", Weights(layer_bits=8.5, head_bits=8.5, is_int8=True)),
        _llama(llama, "llama.cpp q4_0", "q4_0", Weights(layer_bits=4.5, head_bits=4.5, is_int8=True)),
        _llama(llama, "llama.cpp bf16", "bf16", BF16, "-b", "128", "-ub", "128", tuning=("steps of 128",)),
        _transformers(transformers),
    ]


def _vllm(
    environment: Environment,
    engine: str,
    weights: Weights,
    *options: str,
    dtype: str = "bfloat16",
    tuning: Sequence[str] = (),
) -> Peer:
    """Its OpenAI server."""
    all_options = (*_as_options({"dtype": dtype} | VLLM_OPTIONS), *options)

    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        checkpoint = make_checkpoint(checkpoints, plan.shape, is_w8a8=weights.is_int8)

        def argv(port: int, served: str) -> Sequence[str | Path]:
            command = (environment.directory / "bin" / "vllm", "serve", checkpoint, "--served-model-name", served)
            where = ("--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details")
            return [*command, *all_options, *where]

        return run_server(Server(argv, _vllm_environment(environment)), plan, log, on_line)

    settings = " ".join(("vllm serve", *all_options))
    workloads = ("W5",) if options else Peer.workload_names
    name = name_of(engine, THROUGH_HTTP, *tuning)
    return Peer(name, weights, environment, measure, _vllm_settings(settings), workloads)


def _vllm_engine(environment: Environment, engine: str, weights: Weights) -> Peer:
    """The engine of its `LLM`, without the process that this would start for it."""
    engine_options = {"dtype": "bfloat16"} | VLLM_OPTIONS

    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        checkpoint = make_checkpoint(checkpoints, plan.shape, is_w8a8=weights.is_int8)
        arguments = {"checkpoint": str(checkpoint), "options": engine_options | {"disable_log_stats": True}}
        library = Library("tests.bench.speed.vllm_engine:make_target", arguments, environment.python)
        return run_child(library, plan, log, on_line, _vllm_environment(environment) | ONE_PROCESS)

    options = ", ".join(f"{name}={value!r}" for name, value in engine_options.items())
    settings = _vllm_settings(f"VLLM_ENABLE_V1_MULTIPROCESSING=0 LLM({options})")
    return Peer(name_of(engine, IN_PROCESS), weights, environment, measure, settings)


def _as_options(options: Mapping[str, object]) -> list[str]:
    """Of a command line."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _vllm_settings(settings: str) -> str:
    variables = [f"{name}={value}" for name, value in VLLM_ENVIRONMENT.items() if name.startswith("VLLM_CPU")]
    return " ".join((*variables, settings)) + ", tcmalloc and libiomp5 preloaded"


def _vllm_environment(environment: Environment) -> dict[str, str]:
    """With the libraries that its documentation has preloaded, as far as they are there."""
    libraries = [*environment.directory.rglob("libtcmalloc_minimal.so.4"), environment.directory / "lib/libiomp5.so"]
    preload = ":".join(str(library) for library in libraries if library.exists())
    return VLLM_ENVIRONMENT | {"LD_PRELOAD": preload}


def _llama(
    environment: Environment, engine: str, form: str, weights: Weights, *options: str, tuning: Sequence[str] = ()
) -> Peer:
    """Its server, which is where it admits and batches."""

    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        programs = environment.directory / "build" / "bin"
        checkpoint = make_checkpoint(checkpoints, plan.shape)
        file = make_gguf(checkpoint, plan.shape, form, programs / "llama-quantize")
        threads = ("-t", str(NUM_THREADS), "-tb", str(NUM_THREADS))

        def argv(port: int, served: str) -> Sequence[str | Path]:
            command = (programs / "llama-server", "-m", file, "--alias", served, *threads)
            return [*command, *LLAMA_OPTIONS, *options, "--host", "127.0.0.1", "--port", str(port)]

        return run_server(Server(argv), plan, log, on_line)

    settings = " ".join(("llama-server", "-t", str(NUM_THREADS), *LLAMA_OPTIONS, *options))
    workloads = ("W5",) if options else Peer.workload_names
    return Peer(name_of(engine, THROUGH_HTTP, *tuning), weights, environment, measure, settings, workloads)


def _transformers(environment: Environment) -> Peer:
    def measure(checkpoints: Path, plan: Plan, log: Path, on_line: OnLine) -> Outcome:
        arguments = {"checkpoint": str(make_checkpoint(checkpoints, plan.shape))}
        library = Library("tests.bench.speed.static_batches:StaticBatches", arguments, environment.python)
        threads = {"OMP_NUM_THREADS": str(NUM_THREADS), "HF_HUB_OFFLINE": "1"}
        return run_child(library, plan, log, on_line, threads)

    settings = "sdpa, static batches of 64"
    return Peer(name_of("transformers bf16", IN_PROCESS), BF16, environment, measure, settings)
