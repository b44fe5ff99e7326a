"""How jobs, queues and times look on a terminal. Data goes to stdout, progress and remarks to stderr."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.client import Readiness

STATUS_STYLES = {
    "queued": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "expired": "magenta",
    "dead": "bold red",
}
PIPE_COLUMNS = 500
# What a model writes must not steer the terminal: control characters other than tab and line feed are left out.
_CONTROLS = dict.fromkeys(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n")


def stdout() -> Console:
    """The console for what the command was asked for. Into a pipe or a file, tables are as wide as they need to be."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def stderr() -> Console:
    """The console for progress, remarks and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def write_output(text: str) -> None:
    """Put a model's text on stdout as it is, or without control characters when that is a terminal."""
    sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_job(job: Mapping[str, Any]) -> None:
    """The whole job: a headline, its facts, its output or its error."""
    console = stdout()
    console.print(headline(job))
    for name, value in _facts(job):
        console.print(Text.assemble((f"{name:<11}  ", "dim"), value))
    if job["output"] and job["output"]["text"]:
        console.print()
        write_output(job["output"]["text"].rstrip("\n") + "\n" + other_outputs(job))


def other_outputs(job: Mapping[str, Any]) -> str:
    """What a job with several outputs wrote beside the first, each below a line that says which it is."""
    choices = (job["output"] or {}).get("choices") or []
    return "".join(
        f"\n-- output {choice['index'] + 1} of {len(choices)} --\n{choice['text'].rstrip()}\n" for choice in choices[1:]
    )


def headline(job: Mapping[str, Any]) -> Text:
    """`● succeeded  job_0193...  gemma-3-270m  normal`."""
    style = STATUS_STYLES[job["status"]]
    dim = f"  {job['model']}  {job['tier']}"
    return Text.assemble(("● ", style), (job["status"], f"bold {style}"), f"  {job['id']}", (dim, "dim"))


def waiting_line(job: Mapping[str, Any]) -> str:
    """`number 3 in line, starts in about 12 s`: what is known of a job that has not ended."""
    if job["status"] == "running":
        return "running"
    if job["position"] is None:
        return "queued"
    place = "next in line" if job["position"] == 1 else f"number {job['position']:,} in line"
    if job["estimate"] is None:
        return place
    estimate = job["estimate"]
    seconds, likely = estimate["start_in_seconds"], _time(estimate["start_at"])
    if seconds < 1:
        return f"{place}, starts any moment"
    earliest, latest = (
        duration(seconds + (_time(estimate[name]) - likely).total_seconds()) for name in ("earliest", "latest")
    )
    return f"{place}, starts in about {duration(seconds)} ({earliest} to {latest})"


def summary(job: Mapping[str, Any]) -> Text:
    """One line on an ended job: `succeeded  32 tokens in 1.4 s, 23 per second, stopped by length`."""
    parts = []
    num_tokens = job["usage"]["completion_tokens"] if job["usage"] else 0
    if job["started_at"] and job["ended_at"]:
        seconds = (_time(job["ended_at"]) - _time(job["started_at"])).total_seconds()
        parts.append(f"{_count(num_tokens, 'token')} in {duration(seconds)}")
        if num_tokens > 1 and seconds > 0:
            parts.append(f"{num_tokens / seconds:,.0f} per second")
    if job["output"] and job["output"]["finish_reason"]:
        parts.append({"stop": "stopped by itself", "length": "reached max_tokens"}[job["output"]["finish_reason"]])
    if job["error"]:
        parts.append(f"{job['error']['message']} ({job['error']['code']})")
    style = f"bold {STATUS_STYLES[job['status']]}"
    return Text.assemble((job["status"], style), "  ", (", ".join(parts), "" if job["error"] else "dim"))


def queue_table(queues: list[dict[str, Any]]) -> Table:
    """Each model's tiers, with how many jobs wait and run."""
    table = _table("Model", "Tier", "Queued", "Parked", "Running", "Oldest waits")
    for queue in queues:
        numbers = [_number(queue[name]) for name in ("queued", "parked", "running")]
        oldest = queue["oldest_wait_seconds"]
        table.add_row(queue["model"], queue["tier"], *numbers, "" if oldest is None else duration(oldest))
    return table


def dead_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """Dead jobs with their reasons, and each crash's worker and token."""
    table = _table("Job", "Model", "Tier", "Died", "Attempts", "Crashed on", "Reason")
    for job in jobs:
        workers = ", ".join(f"{crash['worker'] or crash['worker_id']} at {crash['tokens']}" for crash in job["crashes"])
        reason = job["error"]["message"] if job["error"] else ""
        died = _ago(_time(job["ended_at"]))
        table.add_row(job["id"], job["model"], job["tier"], died, f"{job['attempt']}", Text(workers), Text(reason))
    return table


def print_status(readiness: Readiness, url: str) -> None:
    """Whether the service is ready, and each check that says why it is not."""
    console = stdout()
    style, word = ("green", "ready") if readiness.is_ready else ("red", "not ready")
    console.print(Text.assemble(("● ", style), (word, f"bold {style}"), f"  {url}"))
    for name, outcome in readiness.detail.get("checks", {}).items():
        if outcome != "ok":
            console.print(Text.assemble(("  " + name, "bold"), f"  {outcome}"))


def model_table(models: list[dict[str, Any]]) -> Table:
    """The models, and whether somebody serves them now."""
    table = _table("Model", "Status", "Workers", "Longest", "Chat")
    for model in models:
        style = {"ready": "green", "loading": "yellow"}.get(model["status"], "red")
        chat = "yes" if model["has_chat_template"] else "no"
        longest = f"{model['max_model_len']:,} tokens"
        table.add_row(model["id"], Text(model["status"], style), str(model["num_workers"]), longest, chat)
    return table


def key_table(keys: list[dict[str, Any]]) -> Table:
    """API keys, with what each may do; of the key itself only the last characters."""
    table = _table("Key", "Name", "Tenant", "Ends in", "Scopes", "Limits", "Made", "Revoked")
    for key in keys:
        made, revoked = _ago(_time(key["created_at"])), key["revoked_at"] and _ago(_time(key["revoked_at"]))
        texts = (key["name"], key["tenant"], key["hint"], ", ".join(key["scopes"]), _limits(key), made, revoked or "")
        table.add_row(key["id"], *(Text(text) for text in texts))
    return table


def _limits(key: dict[str, Any]) -> str:
    """`60 requests/min, any number of jobs`: what the key has of its own, beside the settings."""
    units = {"requests_per_minute": "requests/min", "tokens_per_minute": "tokens/min", "concurrent_jobs": "jobs"}
    given = {unit: key[name] for name, unit in units.items() if key[name] is not None}
    return ", ".join(f"{most:,} {unit}" if most else f"any number of {unit}" for unit, most in given.items())


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for column in columns:
        is_number = column in ("Queued", "Parked", "Running", "Oldest waits", "Workers", "Longest")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    return table


def _facts(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    created, started, ended = (_time(job[name]) for name in ("created_at", "started_at", "ended_at"))
    facts = [("created", f"{created.astimezone():%Y-%m-%d %H:%M:%S} ({_ago(created)})")]
    if job["status"] == "queued":
        facts.append(("waiting", waiting_line(job)))
    if started:
        facts.append(("waited", duration((started - created).total_seconds())))
        facts.append(("ran" if ended else "running", duration(((ended or _now()) - started).total_seconds())))
    if job["attempt"] > 1:
        facts.append(("attempts", f"{job['attempt']}"))
    if job["usage"]:
        facts.append(("tokens", f"{job['usage']['prompt_tokens']:,} in, {job['usage']['completion_tokens']:,} out"))
    if job["output"] and job["output"]["finish_reason"]:
        facts.append(("finish", job["output"]["finish_reason"]))
    facts += [("crashed on", _crash(crash)) for crash in job["crashes"]]
    if job["replay_of"]:
        facts.append(("replay of", job["replay_of"]))
    if job["error"]:
        facts.append(("error", f"{job['error']['message']} ({job['error']['code']})"))
    facts += [(name, job[name]) for name in ("webhook_url", "start_by", "finish_by") if job[name]]
    if job["metadata"]:
        facts.append(("metadata", ", ".join(f"{key}={value}" for key, value in job["metadata"].items())))
    return [(name.replace("_", " "), value) for name, value in facts]


def _crash(crash: Mapping[str, Any]) -> str:
    worker = f"{crash['worker']} ({crash['worker_id']})" if crash["worker"] else crash["worker_id"]
    return f"{worker}, attempt {crash['attempt']}, at token {crash['tokens']}, {_ago(_time(crash['at']))}"


def _number(value: int) -> str:
    return f"{value:,}" if value else "·"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _ago(moment: datetime) -> str:
    return f"{duration((_now() - moment).total_seconds())} ago"


def _now() -> datetime:
    return datetime.now(UTC)


def _time(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text)
