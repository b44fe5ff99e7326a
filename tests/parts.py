"""`python -m tests.parts`: the whole suite as three pytest runs side by side, which share nothing but the files.

A run waits for other processes half of its time; three of them keep two cores busy. Each has its own stores,
directories and ports, and computes in one thread. What they print comes line by line as it is made, their reports at
the end.
"""

import os
import signal
import subprocess
import sys
from threading import Thread

# Two runs take these directories and the third whatever else there is, so that every test file is in one of them.
APART = {"workers": ["tests/workers"], "clients": ["tests/openai", "tests/e2e", "tests/chaos"]}
REST = [f"--ignore={directory}" for directories in APART.values() for directory in directories]
PARTS = APART | {"rest": REST}  # name and arguments
RULE = "=" * 10  # pytest draws the first one above its header, and the second one above its report


class Part:
    """One pytest run, as it goes."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self._name = name
        self._report: list[str] = []  # written by the thread that shows, read once it has ended
        color = "yes" if sys.stdout.isatty() else "no"
        cache_dir = f"cache_dir=.pytest_cache/{name}"  # each would overwrite what the other says of failures
        pytest = [sys.executable, "-m", "pytest", "--color", color, "-o", cache_dir, *arguments]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "INT", *pytest],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._showing = Thread(target=self._show)
        self._showing.start()

    def _show(self) -> None:
        """Print everything before the report, and keep the report."""
        assert self._process.stdout is not None
        num_rules = 0
        for line in self._process.stdout:
            num_rules += RULE in line
            if num_rules < 2:
                print(f"{self._name:7} {line}", end="", flush=True)
            else:
                self._report.append(line)

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self._showing.join()
        return self._process.wait()

    def print_report(self) -> None:
        print(f"\n{self._name}:\n", *self._report, sep="", end="", flush=True)


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches all runs; their reports are still to be shown
    parts = [Part(name, arguments) for name, arguments in PARTS.items()]
    exit_codes = [part.end() for part in parts]
    for part in parts:
        part.print_report()
    return max(exit_codes, key=abs)


if __name__ == "__main__":
    sys.exit(main())
