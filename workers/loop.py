"""The engine thread: loads the model, then steps for ever. It does no I/O; what it makes goes to streamer and writer.

Other threads reach it by commands only. It alone writes the engine, the generations and what `HeldJob` says is its.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from db.models import Status
from workers.engine.errors import InvalidTokens, Refused, StepFailed
from workers.engine.outputs import StepOutput
from workers.generation import Generation
from workers.held import HeldJob
from workers.loading import LoadedModel
from workers.streamer import Streamer
from workers.thread import WorkerThread
from workers.writer import Writer

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0002  # beside a busy Python thread the default of 5 ms made a 9.5 ms step 27 ms
DEADLINE_SECONDS = 0.05  # how often deadlines are looked at
STALL_SECONDS = 0.01  # pause when the engine has work of which nothing can run


@dataclass(frozen=True)
class Start:
    """Generate this job."""

    held: HeldJob


@dataclass(frozen=True)
class Interrupt:
    """Stop generating this job and end it with what it has; without a status, leave its row alone."""

    held: HeldJob
    status: Status | None
    error_code: str | None = None
    error_message: str | None = None


class EngineLoop(WorkerThread):
    """One thread around one engine."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        *,
        streamer: Streamer,
        writer: Writer,
        on_ready: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`load` and `on_ready` run on the thread."""
        super().__init__("engine", on_failure)
        self._load = load
        self._streamer = streamer
        self._writer = writer
        self._on_ready = on_ready
        self._condition = threading.Condition()
        self._commands: deque[Start | Interrupt] = deque()  # under the condition
        self._is_between = True  # under the condition: no command is being carried out
        self._is_stopping = False  # under the condition
        self.model: LoadedModel | None = None  # this thread, once
        self._generations: dict[str, Generation] = {}  # this thread, by sequence id
        self.waiting: tuple[HeldJob, ...] = ()  # this thread: in the engine, and not running
        self.longest_step_seconds = 0.0  # this thread: of those that retired
        self._next_look = 0.0  # this thread

    def start_job(self, held: HeldJob) -> None:
        self._tell(Start(held))

    def interrupt(self, held: HeldJob, status: Status | None) -> None:
        """Soon: end the job as `status`, or with None drop it."""
        self._tell(Interrupt(held, status))

    def expire(self, held: HeldJob) -> None:
        """Soon: end a job that is late and was never started."""
        self._tell(expiry_of(held))

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until every command given so far is carried out. False when that took too long."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._commands and self._is_between, timeout_seconds)

    def stop(self) -> None:
        """Soon: leave the loop; what still runs is left as it is."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()

    def seconds_stuck(self) -> float:
        """Age of the last retired step while work is pending; 0 when there is nothing to wait for."""
        model = self.model
        if model is None or not model.engine.has_work:
            return 0.0
        return monotonic() - model.engine.last_retired_at

    def work(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.model = self._load()
        self._on_ready()
        while self._wait_for_work():
            self._round(self.model)

    def _tell(self, command: Start | Interrupt) -> None:
        with self._condition:
            self._commands.append(command)
            self._condition.notify_all()

    def _wait_for_work(self) -> bool:
        """Return when there is a command or a step to see to; False to end the thread."""
        assert self.model is not None
        with self._condition:
            if not self.model.engine.has_work:
                self._condition.wait_for(lambda: self._commands or self._is_stopping)
            return not self._is_stopping

    def _round(self, model: LoadedModel) -> None:
        for command in self._take_commands():
            if isinstance(command, Start):
                self._start(model, command.held)
            else:
                self._interrupt(model, command)
        self._say_between()
        self._expire(model)
        if model.engine.has_work:
            self._step(model)
        if self.waiting or model.engine.num_waiting:
            ids = model.engine.waiting_ids
            self.waiting = tuple(self._generations[each].held for each in ids if each in self._generations)

    def _take_commands(self) -> list[Start | Interrupt]:
        with self._condition:
            commands = list(self._commands)
            self._commands.clear()
            self._is_between = not commands
            return commands

    def _say_between(self) -> None:
        if not self._is_between:
            with self._condition:
                self._is_between = True
                self._condition.notify_all()

    def _start(self, model: LoadedModel, held: HeldJob) -> None:
        if held.is_closed:
            return
        generation = Generation(held, model.tokenizer)
        self._generations[held.sequence_id] = generation
        reason = generation.resume()
        if reason is None:
            try:
                generation.check_length(model.engine.config.max_model_len)
                reason = model.engine.add(generation.sequence())
            except Refused as refusal:
                code = "invalid_prompt" if isinstance(refusal, InvalidTokens) else "context_length_exceeded"
                self._end(held, Status.FAILED, error_code=code, error_message=str(refusal))
                return
        self.waiting = (*self.waiting, held)  # before the next line: whoever counts finds it here or there
        held.is_added = True
        if reason is not None:  # the worker before us delivered the last token and died before the commit
            self._end(held, Status.SUCCEEDED, finish_reason=reason)

    def _interrupt(self, model: LoadedModel, command: Interrupt) -> None:
        held = command.held
        if held.is_closed:
            return
        if held.sequence_id in self._generations:
            model.engine.abort(held.sequence_id)
        if command.status is None:
            held.is_dropped = True
            self._generations.pop(held.sequence_id, None)
            return
        self._end(held, command.status, error_code=command.error_code, error_message=command.error_message)

    def _expire(self, model: LoadedModel) -> None:
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + DEADLINE_SECONDS
        for held in [generation.held for generation in self._generations.values() if generation.held.is_late]:
            self._interrupt(model, expiry_of(held))

    def _step(self, model: LoadedModel) -> None:
        began = monotonic()
        try:
            outputs = model.engine.step()
        except StepFailed as failure:
            log.error("a step failed", exc_info=failure.cause, extra={"num_jobs": len(failure.sequence_ids)})
            self._fail(failure)
            return
        self.longest_step_seconds = max(self.longest_step_seconds, monotonic() - began)
        advanced = [self._advance(model, output) for output in outputs]
        self._streamer.mark(held for held in advanced if held is not None)
        if not outputs and not model.engine.num_running:
            with self._condition:
                self._condition.wait_for(lambda: self._commands or self._is_stopping, STALL_SECONDS)

    def _fail(self, failure: StepFailed) -> None:
        for sequence_id in failure.sequence_ids:
            generation = self._generations.get(sequence_id)
            if generation is not None:
                self._end(
                    generation.held,
                    Status.FAILED,
                    error_code="engine_error",
                    error_message=f"the model could not compute this: {failure.cause}",
                )

    def _advance(self, model: LoadedModel, output: StepOutput) -> HeldJob | None:
        """Take up one output. None when its job left in the meantime."""
        generation = self._generations.get(output.sequence_id)
        if generation is None:
            return None
        held = generation.held
        if output.error is not None:
            self._end(held, Status.FAILED, error_code="engine_error", error_message=output.error)
            return held
        reason = generation.push(output)
        if reason is not None:
            if output.finish_reason is None:  # a stop string, of which the engine knows nothing
                model.engine.abort(output.sequence_id)
            self._end(held, Status.SUCCEEDED, finish_reason=reason)
        return held

    def _end(
        self,
        held: HeldJob,
        status: Status,
        *,
        finish_reason: str | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> None:
        held.end = held.ended_as(
            status, finish_reason=finish_reason, error_code=error_code, error_message=error_message
        )
        self._generations.pop(held.sequence_id, None)
        self._writer.put(held)


def expiry_of(held: HeldJob) -> Interrupt:
    """The end of a job that `is_late`, by the name of its limit."""
    code = held.claimed.limit_code
    assert code is not None, "a deadline is a limit's"
    message = f"{code.removesuffix('_passed')} passed after {len(held.tokens)} output tokens"
    return Interrupt(held, Status.EXPIRED, code, message)
