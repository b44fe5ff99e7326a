"""The queue benchmark: `make bench-queue`. Prints each figure and writes the table to results/queue.md.

Everything runs on this machine, the clients included: what they take is missing from the service.
"""

import asyncio
import os
import time
from pathlib import Path

from sqlalchemy import text

from tests.bench import load, machine, pops, processor, queue_keys, stock_celery
from tests.bench.counters import BY_SCRIPTS, Counts
from tests.bench.null_model import DirectEngine
from tests.bench.queue_keys import Keys
from tests.bench.report import Report, milliseconds, percentile
from tests.bench.stack import NUM_KEYS, Stack, run_stack

RESULTS = Path(__file__).parent / "results" / "queue.md"
NUM_SINGLE = 200
NUM_PAIRS = 200
NUM_CONNECTIONS = 32
SUBMIT_SECONDS = 8.0
NUM_LONG, LONG_TOKENS = 64, 200
NUM_FEW, NUM_MANY = 300, 10_000
SHOWN_STATEMENTS = 14

STARTED = text("SELECT extract(epoch FROM started_at)::float8 FROM jobs WHERE created_at >= :since ORDER BY id")


def main() -> None:
    """Run all parts, each beside nothing else of ours."""
    began, load_before = time.monotonic(), machine.load_average()
    report = Report([*machine.describe(), "command: `make bench-queue`"])
    with run_stack() as stack:
        with stack.worker():
            idle(stack, report)
            few = queue_keys.count_after(stack, NUM_FEW)
            first_token(stack, report)
            end_to_end(stack, report)
            tokens(stack, report)
            keys(report, few, queue_keys.count_after(stack, NUM_MANY))
        submits(stack, report)
        pop_latency(stack, report)
        stock(stack, report)
    seconds, loads = time.monotonic() - began, f"{load_before:.1f} before and {machine.load_average():.1f} after"
    report.heading.append(f"load average {loads}, on {os.cpu_count()} cores; the whole run took {seconds:.0f} s")
    report.write(RESULTS)
    print("\n" + report.markdown())


def idle(stack: Stack, report: Report) -> None:
    since = stack.now()
    sent_at = asyncio.run(load.submit_singly(stack, NUM_SINGLE))
    with stack.engine.connect() as connection:
        started_at = connection.scalars(STARTED, {"since": since}).all()
    waits = [started - sent for sent, started in zip(sent_at, started_at, strict=True)]
    how = f"{NUM_SINGLE} jobs, one after the other's end; from the client's send to `started_at` in the row"
    report.add("submit -> claimed, idle system", milliseconds(waits), how)


def first_token(stack: Stack, report: Report) -> None:
    engine = DirectEngine(stack.settings)
    asyncio.run(load.first_tokens(stack, engine, NUM_PAIRS // 10))  # warms both up
    pairs = asyncio.run(load.first_tokens(stack, engine, NUM_PAIRS))
    service, direct = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    overhead = [through - alone for through, alone in pairs]
    how = f"{NUM_PAIRS} pairs in turns: a streamed completion's first event, less the same prompt on the engine alone"
    report.add("queue overhead to the first token", milliseconds(overhead), how)
    parts = f"p50 {percentile(service, 50) * 1000:.2f} and {percentile(direct, 50) * 1000:.2f} ms"
    report.add("through the service, and on the engine alone", parts, "the same pairs")


def end_to_end(stack: Stack, report: Report) -> None:
    since, before, began, used = stack.now(), stack.counts(), time.time(), stack.processor_seconds()
    latencies = asyncio.run(load.submit_all(stack, num_connections=NUM_CONNECTIONS, seconds=SUBMIT_SECONDS))
    done = stack.wait_done(since)
    spent = processor.per_job(used, stack.processor_seconds(), done.num_jobs)
    assert done.ended_at is not None
    rate, counts = done.num_jobs / (done.ended_at.timestamp() - began), stack.counts().since(before)
    how = f"{done.num_jobs:,} jobs from {NUM_CONNECTIONS} connections; first send to last `ended_at`"
    report.add("jobs per second end to end, one API process, one worker", f"{rate:.0f}/s", how)
    report.add("processor time per job end to end", spent, "the same jobs; other load adds less to it")
    report.add("a submit's latency meanwhile", milliseconds(latencies), "the same jobs")
    per_job(report, "end to end", counts, done.num_jobs)
    report.notes += statement_table(counts, done.num_jobs)


def tokens(stack: Stack, report: Report) -> None:
    since, before = stack.now(), stack.counts()
    options = {"num_connections": NUM_CONNECTIONS, "num_jobs": NUM_LONG, "max_tokens": LONG_TOKENS}
    asyncio.run(load.submit_all(stack, **options))
    done, counts = stack.wait_done(since), stack.counts().since(before)
    thousands = done.num_jobs * LONG_TOKENS / 1000
    num_commands, num_appends = counts.commands.total(), counts.commands["evalsha"]
    how = f"{NUM_LONG} jobs of {LONG_TOKENS} tokens on 32 seats; all their commands, those inside scripts included"
    value = f"{num_commands / thousands:.0f}, of which {num_appends / thousands:.0f} script calls"
    report.add("Redis commands per 1,000 tokens", value, how)
    rate = f"{done.num_jobs * LONG_TOKENS / done.seconds:,.0f}/s"
    report.add("tokens per second meanwhile", rate, "the same jobs, first claim to last end")


def keys(report: Report, few: Keys, many: Keys) -> None:
    value = f"{few.num_lasting} and {many.num_lasting}, with {few.num_members} and {many.num_members} members"
    how = f"after {few.num_jobs:,} jobs and {NUM_FEW:,} inspections, and after {many.num_jobs:,} and {NUM_MANY:,}"
    report.add("Redis keys that do not expire", value, how)
    how = "keys of jobs that ended less than five minutes ago: their streams"
    report.add("Redis keys that do", f"{few.num_expiring:,} and {many.num_expiring:,}", how)


def submits(stack: Stack, report: Report) -> None:
    """Without a worker; then with one, and nobody who submits."""
    since, before, began, used = stack.now(), stack.counts(), time.perf_counter(), stack.processor_seconds()
    latencies = asyncio.run(load.submit_all(stack, num_connections=NUM_CONNECTIONS, seconds=SUBMIT_SECONDS))
    rate = len(latencies) / (time.perf_counter() - began)
    how = f"{NUM_CONNECTIONS} connections for {SUBMIT_SECONDS:.0f} s, {NUM_KEYS} keys, no worker running"
    report.add("submits per second, one API process", f"{rate:.0f}/s; {milliseconds(latencies)}", how)
    submitted, spent = stack.counts(), processor.per_job(used, stack.processor_seconds(), len(latencies))
    report.add("processor time per submit", spent, "the same submits")
    per_job(report, "submit alone", submitted.since(before), len(latencies))
    with stack.worker():
        used = stack.processor_seconds()
        done = stack.wait_done(since)
        spent = processor.per_job(used, stack.processor_seconds(), done.num_jobs)
    how = f"the {done.num_jobs:,} jobs submitted before, a worker of 32 seats; first `started_at` to last `ended_at`"
    report.add("jobs per second, claim -> finish, null engine", f"{done.num_jobs / done.seconds:.0f}/s", how)
    report.add("processor time per job, claim -> finish", spent, "the same jobs, from the worker's readiness on")
    per_job(report, "claim -> finish alone", stack.counts().since(submitted), done.num_jobs)


def pop_latency(stack: Stack, report: Report) -> None:
    seconds = pops.measure(stack.redis)
    medians = {depth: percentile(values, 50) for depth, values in seconds.items()}
    how = f"{pops.NUM_POPS:,} pops of one message each, three tiers, client included; AOF off"
    for depth, values in seconds.items():
        report.add(f"pop at {depth:,} queued", milliseconds(values), how)
    ratio = medians[max(medians)] / medians[min(medians)]
    report.add("pop, deepest to shallowest", f"{ratio:.2f}x", "ratio of the medians above")


def stock(stack: Stack, report: Report) -> None:
    figures = stock_celery.measure(stack.settings, stack.redis)
    beside = f"plain Celery prefork, {stock_celery.NUM_PROCESSES} processes, results in Redis"
    report.add("stock: publish -> task runs, idle", milliseconds(figures.idle_seconds), f"{beside}; no HTTP, no row")
    report.add("stock: published per second", f"{figures.published_per_second:.0f}/s", "`apply_async` in a loop")
    report.add("stock: tasks per second from a full queue", f"{figures.drained_per_second:.0f}/s", beside)
    report.add("stock: tasks per second end to end", f"{figures.end_to_end_per_second:.0f}/s", "published meanwhile")


def per_job(report: Report, what: str, counts: Counts, num_jobs: int) -> None:
    """Everything that was asked of the stores, the periodic included, divided by the jobs."""
    statements, commands = counts.statements.total() / num_jobs, counts.commands.total() / num_jobs
    inside = sum(calls for name, calls in counts.commands.items() if name in BY_SCRIPTS) / num_jobs
    report.add(f"Postgres statements per job, {what}", f"{statements:.2f}", "pg_stat_statements, BEGIN and COMMIT too")
    value = f"{commands:.2f}, of which {counts.commands['evalsha'] / num_jobs:.2f} script calls, {inside:.2f} inside"
    report.add(f"Redis commands per job, {what}", value, "`INFO commandstats`; PUBLISH counts as outside")


def statement_table(counts: Counts, num_jobs: int) -> list[str]:
    """The most frequent statements."""
    top = counts.statements.most_common(SHOWN_STATEMENTS)
    rows = [f"| {calls / num_jobs:.3f} | `{' '.join(query.split())[:110]}` |" for query, calls in top]
    return ["End to end, by statement:", "", "| per job | statement |", "|---|---|", *rows]


if __name__ == "__main__":
    main()
