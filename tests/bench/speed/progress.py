"""Lines about a benchmark while it runs."""

import time


class Progress:
    """Prints lines with the seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, line: str) -> None:
        print(f"[{self.seconds:4.0f} s] {line}", flush=True)
