"""How steps get computed: at once, one after the other on a thread beside the engine's, or by a device beside it."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Protocol, runtime_checkable

from workers.engine.batch import Batch
from workers.engine.outputs import Computed


class Runner(Protocol):
    """Computes a batch. `ModelRunner` is the one there is; tests may count or fail."""

    def run(self, batch: Batch) -> Computed:
        """One sample per sequence of `batch.sampled`, in that order."""
        ...


class Flight(Protocol):
    """A step that is being computed beside this thread."""

    def wait(self) -> Computed:
        """What it computed; asked again, the same. Raises what computing it raised."""
        ...

    @property
    def seconds(self) -> float:
        """How long it took, once it is over."""
        ...


@runtime_checkable
class LaunchingRunner(Runner, Protocol):
    """Has a device that computes by itself. `GraphRunner` is the one there is."""

    def launch(self, batch: Batch) -> Flight:
        """Have a batch computed behind those before it."""
        ...


class Steps(Protocol):
    """Steps under way, in their order. Used by the engine's thread only."""

    def launch(self, batch: Batch) -> None:
        """Have a step computed behind those under way."""
        ...

    def wait(self) -> Computed:
        """The oldest step's result. Raises what computing it raised."""
        ...

    def discard(self) -> None:
        """Let the oldest step come to its end, whichever that is."""
        ...

    def wait_all(self) -> None:
        """Return once no step is being computed."""
        ...

    def close(self) -> None:
        """End what computes, after the steps under way."""
        ...


class Launches:
    """Steps that a device computes: each is launched as soon as it is planned."""

    def __init__(self, runner: LaunchingRunner, observe: Callable[[float, int, int], None]) -> None:
        """`observe` is told the seconds, tokens and pairs of each step, as `StepTime.observe` takes them."""
        self._runner = runner
        self._observe = observe
        self._flights: deque[tuple[Flight | Exception, int, int]] = deque()  # with tokens and pairs

    def launch(self, batch: Batch) -> None:
        num_rows, num_pairs = len(batch.input_ids), batch.num_pairs
        try:
            flight: Flight | Exception = self._runner.launch(batch)
        except Exception as error:  # told when the step's turn has come
            flight = error
        self._flights.append((flight, num_rows, num_pairs))

    def wait(self) -> Computed:
        flight, num_rows, num_pairs = self._flights.popleft()
        if isinstance(flight, Exception):
            raise flight
        computed = flight.wait()
        self._observe(flight.seconds, num_rows, num_pairs)
        return computed

    def discard(self) -> None:
        _settle(self._flights.popleft()[0])

    def wait_all(self) -> None:
        for flight, _, _ in self._flights:
            _settle(flight)

    def close(self) -> None:
        self.wait_all()


def _settle(flight: Flight | Exception) -> None:
    if not isinstance(flight, Exception):
        with suppress(Exception):
            flight.wait()


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


def make_steps(
    runner: Runner,
    run: Callable[[Batch], Computed],
    observe: Callable[[float, int, int], None],
    *,
    is_overlapping: bool,
) -> Steps:
    """By the device that `runner` has, with `observe` as `Launches` takes it; else by `run`, on a thread or not."""
    if isinstance(runner, LaunchingRunner):
        return Launches(runner, observe)
    return Computing(run, is_overlapping=is_overlapping)
