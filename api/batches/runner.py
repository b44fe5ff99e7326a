"""Runs batches: `headrace batches`, a process of its own, which submits lines exactly as the API's endpoints do.

Why a process: a line is read, refused and answered by the code of its endpoint, which is the API's; the workers know
nothing of that. And 50,000 lines cost as much as 50,000 requests: beside the API's event loop they hold up nobody.

Who runs it: of any number of these processes, the one that holds an advisory lock; the others stand by, and one of them
goes on within a second of its end. The lock saves work, no more: every write is guarded by the state that it leaves, so
two that believe they hold it, one of them frozen for a while, do not run a line twice or count it twice.

A round looks at all batches that have not ended, each in a task of its own (`api.batches.steps.advance`). A few go on
at once, and fewer files are checked: a large one holds up no batch that runs. Nothing of a batch is kept here between
two rounds. The state is in its row and its lines:

    batch   validating -> in_progress -> finalizing -> completed | expired
            validating -> failed;  validating | in_progress -> cancelling -> cancelled
    line    pending -> running -> completed | failed | cancelled | expired;  pending -> any end

What a crash leaves, and what the next round makes of it:

    after the batch was accepted          a row that is `validating`: it is checked
    while the file is checked             nothing was written: it is checked again
    after lines were taken up             one transaction: either all of them are there, in their order, or none
    while lines are prepared              nothing was written: they are prepared again
    after jobs were made                  the job and its line's `running` are one transaction; a message that was not
                                          pushed is the sweep's, as for any submit
    after a job ended                     its row says so: the line is harvested, its result written once, together with
                                          the batch's counts and the size of its file
    between a cancel and its lines' end   the row says `cancelling`: what is pending is ended, what runs is cancelled
    after the window's end                the same; jobs have the window's end as `finish_by` and end by themselves
    while a file is written               nothing shows it: it is written again, from the same lines, to the same place
    after it was written                  the row of the batch and of its files change in one transaction

So a line that has a result keeps it, and no line has two. While the batch runs, its files are its lines: their content
and size can be read at any moment, and agree with the counts.
"""

import asyncio
import logging
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from api.batches.steps import advance
from api.errors import ApiError, is_store_away
from api.grammars import CheckFailed
from api.services import Services
from db import batches
from db.batches import Open

LOCK_KEY = 0x6865616462617463  # "headbatc"
ROUND_SECONDS = 0.25  # how long a line that ended waits for its successor
# Longer than a round is ever silent: Postgres ends the session of a process that is frozen, and its lock with it.
IDLE_SECONDS = 60
# At once: each asks for up to `request.PAGE` connections of the 20 there are, and a file that is read takes a thread.
MOST_ADVANCED, MOST_CHECKED = 8, 2

log = logging.getLogger(__name__)


class BatchRunner:
    """Advances all batches, while this process holds the lock."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock: AsyncConnection | None = None  # holds it; None: it has to be taken first
        self._advancing: dict[UUID, asyncio.Task[None]] = {}  # written by `round` and by the tasks' ends
        self._failing: set[UUID | None] = set()  # batches, None for all: a failure is logged when it begins
        self._turns, self._checks = asyncio.Semaphore(MOST_ADVANCED), asyncio.Semaphore(MOST_CHECKED)

    async def run(self) -> None:
        """Go round until cancelled."""
        try:
            while True:
                await self.round()
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            await self.close()

    async def round(self, *, patience_seconds: float = ROUND_SECONDS) -> bool:
        """Advance each batch once, and wait a little for it; False when another process holds the lock."""
        try:
            if not await self._is_locked():
                return False
            async with self._services.autocommit() as session:
                opens = await batches.open_batches(session)
        except Exception as error:
            await self.close()
            self._failed(None, error)
            return False
        self._failing.discard(None)
        for each in opens:
            if each.batch.id not in self._advancing:
                self._advancing[each.batch.id] = asyncio.create_task(self._advance(each))
        if self._advancing:
            await asyncio.wait(self._advancing.values(), timeout=patience_seconds)
        return True

    async def _advance(self, open_batch: Open) -> None:
        batch_id = open_batch.batch.id
        try:
            async with self._checks if open_batch.batch.status == "validating" else self._turns:
                await advance(self._services, open_batch)
            self._failing.discard(batch_id)
        except Exception as error:  # of one batch: the others go on, and so does this one in the next round
            self._failed(batch_id, error)
        finally:
            del self._advancing[batch_id]

    async def _is_locked(self) -> bool:
        """Whether this process has the lock; takes it where nobody has."""
        if self._lock is not None:
            await self._lock.execute(select(1))  # its session is there, and so is the lock
            return True
        connection = await self._services.engine.connect()
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            if not await connection.scalar(select(func.pg_try_advisory_lock(LOCK_KEY))):
                return False
            await connection.execute(text(f"SET idle_session_timeout = '{IDLE_SECONDS}s'"))
            self._lock = connection
            log.info("batches run here")
            return True
        finally:
            if self._lock is None:
                await connection.close()

    async def close(self) -> None:
        """Break off what is being done, and give up the lock: whoever has it next goes on."""
        tasks = list(self._advancing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection, self._lock = self._lock, None
        if connection is not None:
            try:
                await connection.invalidate()  # never back into the pool, where it could keep the lock
                await connection.close()
            except SQLAlchemyError:
                log.debug("the lock went with its connection")

    def _failed(self, batch_id: UUID | None, error: Exception) -> None:
        if batch_id in self._failing:
            return
        self._failing.add(batch_id)
        is_expected = is_store_away(error) or isinstance(error, ApiError | CheckFailed | OSError)
        fields = {"batch_id": None if batch_id is None else str(batch_id)}
        log.warning("batches wait: %s", error, extra=fields, exc_info=None if is_expected else error)
