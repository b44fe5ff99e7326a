"""The thread that sweeps, in one process of many: whoever holds the advisory lock."""

import logging
import threading

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from workers.contact import ContactLost
from workers.sweep import Report, Sweep

LOCK_KEY = 0x68656164726163  # "headrac"; `api.batches.runner` has the other advisory lock of sessions
# Longer than a round is ever silent. Then Postgres ends the session of a process that is frozen, and its lock with it.
IDLE_SECONDS = 60.0

log = logging.getLogger(__name__)


class Sweeper:
    """Runs `sweep` every `sweep_seconds` from `start` to `stop`, while this process holds the lock.

    The lock belongs to a connection that only tells the time. Postgres drops it with the connection, and the next
    process that asks takes over, beginning its judgement of leases anew; as does this one when it has it again.
    """

    def __init__(
        self, engine: Engine, sweep: Sweep, *, sweep_seconds: float, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """A process that asks for nothing for `idle_seconds`, or three periods if they are longer, loses the lock."""
        self._engine = engine
        self._sweep = sweep
        self._sweep_seconds = sweep_seconds
        self._idle_seconds = max(idle_seconds, 3 * sweep_seconds)
        # Set while the lock is held. The sweep thread only, and `stop` once that has ended.
        self._lock_connection: Connection | None = None
        self._is_failing = False  # the sweep thread only: a failure is logged when it begins, not every round
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)

    def start(self) -> None:
        """Begin with a round at once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the round in progress, and give up the lock."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._unlock()

    def round(self) -> Report | None:
        """Sweep once; None when another process holds the lock or Postgres is away."""
        try:
            now = self._locked_now()
            report = None if now is None else self._sweep.run(now, self._now)
        except (ContactLost, SQLAlchemyError) as error:
            self._lost_contact()
            self._failed(error)
            return None
        if self._is_failing:
            self._is_failing = False
            log.info("sweep works again")
        return report

    def _run(self) -> None:
        while True:
            try:
                self.round()
            except Exception:  # a fault of ours in one round must not end all rounds
                log.exception("sweep round failed")
                self._lost_contact()
            if self._stop.wait(self._sweep_seconds):
                return

    def _locked_now(self) -> float | None:
        """As `_now`; None without the lock."""
        if self._lock_connection is None:
            self._lock_connection = self._take_lock()
            self._sweep.forget()
        if self._lock_connection is None:
            return None
        return self._now()

    def _now(self) -> float:
        """The Postgres clock (Unix seconds), read through the connection that holds the lock: so it does."""
        assert self._lock_connection is not None, "nothing is swept without the lock"
        return float(self._lock_connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())

    def _take_lock(self) -> Connection | None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            if connection.scalar(select(func.pg_try_advisory_lock(LOCK_KEY))):
                connection.detach()  # never back into the pool, where it could keep the lock
                connection.execute(text(f"SET idle_session_timeout = {round(self._idle_seconds * 1000)}"))
                return connection
        except SQLAlchemyError:
            connection.invalidate()
            raise
        connection.close()
        return None

    def _unlock(self) -> None:
        connection, self._lock_connection = self._lock_connection, None
        if connection is None:
            return
        try:
            connection.scalar(select(func.pg_advisory_unlock(LOCK_KEY)))  # its session ends a little later
        except SQLAlchemyError:
            connection.invalidate()
        connection.close()

    def _lost_contact(self) -> None:
        """Workers may have been unable to renew while Postgres was away: judge none of them for one lease."""
        self._sweep.forget()
        self._unlock()

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("sweep interrupted: %s", str(error).partition("\n")[0])
