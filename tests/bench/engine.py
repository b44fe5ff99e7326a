"""The engine benchmark: `make bench-engine`. Prints each figure and writes the table to results/engine.md.

Where computing matters, the model is a small one with random weights on one thread, so that a run is over in minutes.
What the engine costs is then a larger share of a step than beside a model of use, and what it saves a smaller one.
"""

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tests.bench import batching, cache_cost, gaps, kv_memory, machine, preemption, serial
from tests.bench.arrivals import Kind, Latency, make_arrivals, serve
from tests.bench.conversations import NUM_CONVERSATIONS, NUM_TURNS, Conversations, Talk
from tests.bench.engine_world import make_engine, make_model
from tests.bench.report import Report, milliseconds, percentile
from tests.bench.step_times import NUM_STEPS, NUM_WAITING, Load, StepTimes
from workers.engine.engine import Engine
from workers.models.decoder import Decoder

RESULTS = Path(__file__).parent / "results" / "engine.md"
SHORT = Kind("short", num_prompt=32, num_output=16, per_second=8.0, is_random=True)
LONG = Kind("long", num_prompt=1500, num_output=16, per_second=0.5, is_random=False)
WARM = Kind("warm", num_prompt=400, num_output=20, per_second=4.0, is_random=False)
SERVED_SECONDS = 10.0
NO_TARGET = {"target_itl_ms": 1e6}
CUTS: dict[str, dict[str, Any]] = {  # how long prompts are cut beside those that run
    "whole": {"token_budget": 2048, **NO_TARGET},
    "in chunks of 512": NO_TARGET,
    "in chunks, no target set": {},
    "in chunks, target_itl_ms 30": {"target_itl_ms": 30.0},
}
NUM_TALKS = 2
NUM_PAIRS, NUM_PAIRS_ALONE = 10, 60


def main() -> None:
    """Run all parts, one after the other."""
    began, load_before = time.monotonic(), machine.load_average()
    torch.set_num_threads(1)
    report = Report([*machine.describe(), "command: `make bench-engine`"])
    report.heading.append("the small model: Llama, 4 layers of 256, 512 tokens, fp32, random; blocks of 16; one thread")
    step_times(report)
    memory(report)
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(Path(directory))
        prefix_cache(model, report)
        nothing_shared(model, report)
        long_beside_short(model, report)
        token_gaps(model, report)
        static_or_continuous(model, report)
        give_way(model, report)
        serial_mode(model, "the small model", report)
        serial_mode(make_model(Path(directory), num_layers=8, hidden_size=512), "one of 8 layers of 512", report)
    seconds, loads = time.monotonic() - began, f"{load_before:.1f} before and {machine.load_average():.1f} after"
    report.heading.append(f"load average {loads}, on {os.cpu_count()} cores; the whole run took {seconds:.0f} s")
    report.write(RESULTS)
    print("\n" + report.markdown())


def step_times(report: Report) -> None:
    for load in Load:
        for num_running in (8, 64, 256):
            seconds = StepTimes(num_running, load).measure()
            value = f"median {median(seconds) * 1e6:.0f} us, p90 {percentile(seconds, 90) * 1e6:.0f} us"
            how = f"{NUM_STEPS} steps less the runner, which computes nothing; {load.value}; overlap off"
            what = f"schedule and retire, {num_running} running, {NUM_WAITING} waiting, {load.name.lower()}"
            report.add(what, value, how)


def memory(report: Report) -> None:
    for block_size in (16, 32):
        found = kv_memory.measure(block_size)
        lengths = f"{kv_memory.SHORTEST} to {kv_memory.LONGEST:,} tokens, evenly over the logarithm"
        how = (
            f"{kv_memory.NUM_SEQUENCES:,} sequences of {lengths}, in {kv_memory.NUM_SLOTS:,} slots; "
            f"mean over all steps; {found.num_preemptions} preemptions"
        )
        value = f"{found.share:.1%}; {found.share_with_promised:.1%} with those kept for prompts under way"
        report.add(f"allocated KV slots that hold a token, blocks of {block_size}", value, how)
        value = f"{found.mean_running:.0f}; {found.num_contiguous} with {kv_memory.MAX_MODEL_LEN:,} slots for each"
        report.add(f"sequences that run at once, blocks of {block_size}", value, "the same, while somebody waits")


def prefix_cache(model: Decoder, report: Report) -> None:
    """Cache on and off in turns."""
    on, off = make_engine(model), make_engine(model, is_caching=False)
    talks: dict[bool, list[Talk]] = {True: [], False: []}
    for seed in range(NUM_TALKS):
        talks[True].append(Conversations(on, seed=seed).run())
        talks[False].append(Conversations(off, seed=seed).run())
        assert talks[True][-1].answers == talks[False][-1].answers, "the cache changed an answer"
    shared = sum(talk.shared for talk in talks[True]) / NUM_TALKS
    how = f"{NUM_CONVERSATIONS} conversations at once, {NUM_TURNS} turns, {shared:.0%} of the prompts' tokens shared"
    for is_on, name in ((True, "on"), (False, "off")):
        seconds = [s for talk in talks[is_on] for s in talk.first_token_seconds]
        rate = sum(talk.tokens_per_second for talk in talks[is_on]) / NUM_TALKS
        report.add(f"time to first token, prefix cache {name}", milliseconds(seconds), how)
        report.add(f"throughput, prefix cache {name}", f"{rate:.0f} output tokens/s", "the same; equal answers")


def nothing_shared(model: Decoder, report: Report) -> None:
    pairs = cache_cost.measure(make_engine(model), make_engine(model, is_caching=False), num_pairs=NUM_PAIRS)
    costs = [pair.cost for pair in pairs]
    value = f"median {median(costs):+.2%}, quartiles {percentile(costs, 25):+.2%} and {percentile(costs, 75):+.2%}"
    how = f"{NUM_PAIRS} pairs of rounds, on and off in turns; {cache_cost.NUM_SEQUENCES} sequences a round"
    report.add("what the prefix cache costs at a hit rate of 0, of throughput", value, how)
    alone = cache_cost.measure_engine_alone(num_pairs=NUM_PAIRS_ALONE)
    extra = median([pair.on for pair in alone]) - median([pair.off for pair in alone])
    share = extra / median([pair.off for pair in pairs])
    value = f"{extra / cache_cost.NUM_TOKENS * 1e6:.2f} us a token, {share:.2%} of the time above"
    report.add("the same, without a model's noise", value, f"{NUM_PAIRS_ALONE} pairs, nothing computed")


def long_beside_short(model: Decoder, report: Report) -> None:
    only_short = make_arrivals([SHORT], seconds=SERVED_SECONDS)
    both = make_arrivals([SHORT, LONG], seconds=SERVED_SECONDS)
    how = (
        f"{len(only_short)} short ones of {SHORT.num_prompt} + {SHORT.num_output} tokens at {SHORT.per_second:.0f}/s, "
        f"from arrival to last token; the long: {LONG.num_prompt:,} + {LONG.num_output} at {LONG.per_second}/s"
    )
    for name, arrivals, overrides in (
        ("alone", only_short, {}),
        *((f"beside long ones, {name}", both, overrides) for name, overrides in CUTS.items()),
    ):
        latencies = serve(_warm(make_engine(model, max_num_seqs=32, **overrides)), arrivals)
        short = [latency for id, latency in latencies.items() if id.startswith(SHORT.name)]
        report.add(f"short sequences' latency {name}", _latency(short), how)


def _warm(engine: Engine) -> Engine:
    """Has seen prompts and single tokens, so that it knows what they cost."""
    serve(engine, make_arrivals([WARM], seconds=1.0))
    return engine


def _latency(latencies: list[Latency]) -> str:
    last = milliseconds([latency.last_token for latency in latencies])
    first = percentile([latency.first_token for latency in latencies], 99)
    return f"{last}; first token p99 {first * 1000:.2f} ms"


def token_gaps(model: Decoder, report: Report) -> None:
    how = (
        f"{gaps.NUM_RUNNING} sequences decode, {gaps.NUM_ARRIVALS} prompts of {gaps.NUM_LONG_PROMPT:,} tokens arrive, "
        "one after the other; the longest gap beside each, then the prompt's own time to first token"
    )
    for name, overrides in CUTS.items():
        found = gaps.measure(make_engine(model, **overrides))
        gap = f"median {median(found.longest) * 1000:.0f} ms, most {max(found.longest) * 1000:.0f} ms"
        value = f"{gap}; first token median {median(found.first_token) * 1000:.0f} ms"
        report.add(f"longest gap between two tokens while a long prompt is taken {name}", value, how)


def static_or_continuous(model: Decoder, report: Report) -> None:
    """Two rounds of each, in turns."""
    rounds: dict[bool, list[batching.Served]] = {True: [], False: []}
    for is_static in (True, False, True, False):
        rounds[is_static].append(batching.measure(make_engine(model), is_static=is_static))
    short, long = batching.NUM_SHORT, batching.NUM_LONG
    num_short = len(rounds[True][0].short_seconds)
    how = (
        f"{batching.NUM_SEQUENCES} sequences there from the start, 8 seats; {num_short} are short "
        f"({short[0]} to {short[1]} tokens), the others {long[0]} to {long[1]}; from the start to each one's end"
    )
    for is_static, name in ((True, "static"), (False, "continuous")):
        rate = sum(served.tokens_per_second for served in rounds[is_static]) / len(rounds[is_static])
        seconds = [s for served in rounds[is_static] for s in served.short_seconds]
        value = f"{rate:.0f} tokens/s in {rounds[is_static][0].num_steps:,} steps; short ones {_seconds(seconds)}"
        report.add(f"{name} batching", value, how)


def _seconds(values: list[float]) -> str:
    return f"p50 {percentile(values, 50):.2f} s, p99 {percentile(values, 99):.2f} s"


def give_way(model: Decoder, report: Report) -> None:
    for is_swap, name in ((False, "computed again"), (True, "swapped to host memory and back")):
        found = preemption.measure(model, is_swap=is_swap)
        value = f"median {median(found.resume) * 1000:.0f} ms"
        if is_swap:
            value += f"; copies {found.moving * 1000:.1f} ms for {found.bytes_moved / 2**20:.0f} MiB there and back"
        how = f"{preemption.NUM_ROUNDS} times, a context of {preemption.NUM_VICTIM + preemption.NUM_BEFORE:,} tokens"
        report.add(f"a preempted sequence's next token, once there is room: {name}", value, how)


def serial_mode(model: Decoder, name: str, report: Report) -> None:
    for num_seqs in (1, 2):
        found = serial.measure(model, num_seqs=num_seqs)
        bare, engine = median(found.bare) * 1000, median(found.engine) * 1000
        value = f"{found.cost:+.1%}: {engine:.3f} ms a step, {bare:.3f} in the loop"
        how = f"medians of {serial.NUM_STEPS} steps each, in turns, equal tokens; {name}"
        report.add(f"serial mode beside a bare loop, sequences: {num_seqs}", value, how)


if __name__ == "__main__":
    main()
