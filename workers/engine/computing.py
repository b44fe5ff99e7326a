"""How steps get computed: at once, or one after the other on a thread beside the engine's."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from workers.engine.batch import Batch
from workers.engine.outputs import Computed


class Runner(Protocol):
    """Computes a batch. `ModelRunner` is the one there is; tests may count or fail."""

    def run(self, batch: Batch) -> Computed:
        """One sample per sequence of `batch.sampled`, in that order."""
        ...


class Computing:
    """Steps under way, in their order. Used by the engine's thread only."""

    def __init__(self, run: Callable[[Batch], Computed], *, is_overlapping: bool) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(1, "compute") if is_overlapping else None
        self._flights: deque[Future[Computed] | Batch] = deque()

    def launch(self, batch: Batch) -> None:
        """Have a step computed behind those under way. Without a thread that happens when it is waited for."""
        self._flights.append(batch if self._thread is None else self._thread.submit(self._run, batch))

    def wait(self) -> Computed:
        """The oldest step's result. Raises what computing it raised."""
        flight = self._flights.popleft()
        return self._run(flight) if isinstance(flight, Batch) else flight.result()

    def discard(self) -> None:
        """Let the oldest step come to its end, whichever that is."""
        flight = self._flights.popleft()
        if isinstance(flight, Future):
            flight.exception()

    def wait_all(self) -> None:
        """Return once no step is being computed."""
        wait([flight for flight in self._flights if isinstance(flight, Future)])

    def close(self) -> None:
        """End the thread, after the steps under way."""
        if self._thread is not None:
            self._thread.shutdown()
