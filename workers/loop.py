"""The engine thread: loads the model, then steps for ever. It does no I/O; what it makes goes to streamer and writer.

Other threads reach it by commands only. It alone writes the engine, the generations and what `HeldJob` says is its.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic, sleep

from db.models import Status
from workers.engine.errors import InvalidTokens, Refused, TooManyChoices
from workers.engine.group import SequenceGroup
from workers.engine.outputs import StepOutput
from workers.generation import Generation, grammar_spec
from workers.grammar_compiler import GrammarCompiler
from workers.held import HeldJob
from workers.loading import LoadedModel
from workers.streamer import NUM_PROMPT, Streamer
from workers.text.grammar import Grammar, GrammarError
from workers.thread import WorkerThread
from workers.writer import Writer

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0002  # beside a busy Python thread the default of 5 ms made a 9.5 ms step 27 ms
DEADLINE_SECONDS = 0.05  # how often deadlines are looked at
STARVED_SECONDS = 10.0  # after which a job that had to give way is handed back to the queue
FIRST_SECONDS = 0.001  # for the first tokens of jobs to be told, where the next step would take every processor
STALL_SECONDS = 0.01  # pause when the engine has work of which nothing can run
CODES: dict[type[Refused], str] = {InvalidTokens: "invalid_prompt", TooManyChoices: "too_many_choices"}


@dataclass(frozen=True)
class Start:
    """Generate this job. With a grammar, that has been compiled, or could not be."""

    held: HeldJob
    grammar: Future[Grammar] | None = None


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
        self._grammars: GrammarCompiler | None = None  # this thread, once
        self._generations: dict[str, Generation] = {}  # this thread, by sequence id
        self._compiling: dict[str, HeldJob] = {}  # this thread, by sequence id: those that wait for their grammar
        self.waiting: tuple[HeldJob, ...] = ()  # this thread: in the engine, and not running
        self.starved: tuple[HeldJob, ...] = ()  # this thread: had to give way, and got no place again for long
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
        model = self._load()
        config = model.engine.config
        self._grammars = GrammarCompiler(
            model.tokenizer, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids
        )
        self.model = model
        self._on_ready()
        while self._wait_for_work():
            self._round(model)
        model.engine.close()

    def _tell(self, command: Start | Interrupt) -> None:
        with self._condition:
            self._commands.append(command)
            self._condition.notify_all()

    def _wait_for_work(self) -> bool:
        """Return when there is a command, a step or a deadline to see to; False to end the thread."""
        assert self.model is not None
        with self._condition:
            if not self.model.engine.has_work:
                seconds = DEADLINE_SECONDS if self._compiling else None
                self._condition.wait_for(lambda: self._commands or self._is_stopping, seconds)
            return not self._is_stopping

    def _round(self, model: LoadedModel) -> None:
        for command in self._take_commands():
            if isinstance(command, Start):
                self._start(model, command)
            else:
                self._interrupt(model, command)
        self._say_between()
        self._expire(model)
        if model.engine.has_work:
            self._step(model)
        if self.waiting or model.engine.num_waiting:
            self.waiting = self._held(model.engine.waiting_ids)

    def _held(self, ids: list[str]) -> tuple[HeldJob, ...]:
        return tuple(self._generations[each].held for each in ids if each in self._generations)

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

    def _start(self, model: LoadedModel, command: Start) -> None:
        held, spec = command.held, grammar_spec(command.held)
        if held.is_closed:
            return
        if spec is not None and command.grammar is None:
            assert self._grammars is not None
            self._compiling[held.sequence_id] = held
            self._grammars.compile(spec).add_done_callback(lambda grammar: self._tell(Start(held, grammar)))
            return
        self._compiling.pop(held.sequence_id, None)
        try:
            grammar = None if command.grammar is None else command.grammar.result()
            salt = b"" if model.is_shared else held.claimed.tenant.encode()
            generation = Generation(held, model.tokenizer, grammar, salt=salt, pooling=model.pooling)
            self._generations[held.sequence_id] = generation
            generation.resume()
            if not generation.is_over:
                generation.check_length(model.engine.config.max_model_len)
                _add(model, generation)
        except GrammarError as error:
            message = f"the output cannot be held to 'structured_output': {error}"
            self._end(held, Status.FAILED, error_code="grammar_failed", error_message=message)
            return
        except Refused as refusal:
            code = CODES.get(type(refusal), "context_length_exceeded")
            self._end(held, Status.FAILED, error_code=code, error_message=str(refusal))
            return
        self.waiting = (*self.waiting, held)  # before the next line: whoever counts finds it here or there
        held.is_added = True
        if generation.is_over:  # the worker before us delivered the last token and died before the commit
            self._end(held, Status.SUCCEEDED)

    def _interrupt(self, model: LoadedModel, command: Interrupt) -> None:
        held = command.held
        if held.is_closed:
            return
        if held.sequence_id in self._generations:
            model.engine.abort(held.sequence_id)
        if command.status is None:
            held.is_dropped = True
            self._forget(held)
            return
        self._end(held, command.status, error_code=command.error_code, error_message=command.error_message)

    def _expire(self, model: LoadedModel) -> None:
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + DEADLINE_SECONDS
        self.starved = self._held(model.engine.starved_ids(STARVED_SECONDS))
        here = [*self._compiling.values(), *(generation.held for generation in self._generations.values())]
        for held in here:
            if held.is_late:
                self._interrupt(model, expiry_of(held))

    def _step(self, model: LoadedModel) -> None:
        began = monotonic()
        outputs = model.engine.step()
        self.longest_step_seconds = max(self.longest_step_seconds, monotonic() - began)
        told = [held for output in outputs if (held := self._advance(model, output)) is not None]
        self._streamer.mark(told)
        if model.shares_processors and len(told) <= NUM_PROMPT and any(held.num_new == 1 for held in told):
            sleep(FIRST_SECONDS)  # threads that wake up beside a step wait for several times as long
        if not outputs and not model.engine.num_running:
            with self._condition:
                self._condition.wait_for(lambda: self._commands or self._is_stopping, STALL_SECONDS)

    def _advance(self, model: LoadedModel, output: StepOutput) -> HeldJob | None:
        """Take up one output. None when its job left in the meantime."""
        generation = self._generations.get(output.sequence_id)
        if generation is None:
            return None
        held = generation.held
        if output.error is not None:
            log.error("a job failed in the engine", extra={"job_id": str(held.job_id), "error": output.error})
            self._end(held, Status.FAILED, error_code=output.error_code, error_message=output.error)
            return held
        try:
            reason = generation.push(output)
        except Exception as error:  # whatever it is, it is this job's text that cannot be told
            log.exception("a job's text cannot be told", extra={"job_id": str(held.job_id)})
            model.engine.abort(output.sequence_id)
            message = f"the output cannot be turned into text: {type(error).__name__}"
            self._end(held, Status.FAILED, error_code="text_error", error_message=message)
            return held
        if reason is not None and output.finish_reason is None:  # a stop string, of which the engine knows nothing
            model.engine.abort_choice(output.sequence_id, output.choice)
        if generation.is_over:
            self._end(held, Status.SUCCEEDED)
        return held

    def _end(
        self,
        held: HeldJob,
        status: Status,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> None:
        generation = self._forget(held)
        if generation is not None:
            generation.close()
        held.end = held.ended_as(status, error_code=error_code, error_message=error_message)
        self._writer.put(held)

    def _forget(self, held: HeldJob) -> Generation | None:
        """It is not this loop's any more: if its grammar is compiled later, nothing comes of it."""
        self._compiling.pop(held.sequence_id, None)
        return self._generations.pop(held.sequence_id, None)


def _add(model: LoadedModel, generation: Generation) -> None:
    """Have the engine generate the rest. A choice whose last token was delivered before ends here. Raises Refused."""
    unit = generation.unit()
    if isinstance(unit, SequenceGroup):
        reasons = model.engine.add_group(unit)
    else:
        reason = model.engine.add(unit)
        reasons = {} if reason is None else {unit.choice: reason}
    for choice, reason in reasons.items():
        generation.end(choice, reason)


def expiry_of(held: HeldJob) -> Interrupt:
    """The end of a job that `is_late`, by the name of its limit."""
    code = held.claimed.limit_code
    assert code is not None, "a deadline is a limit's"
    message = f"{code.removesuffix('_passed')} passed after {len(held.tokens)} output tokens"
    return Interrupt(held, Status.EXPIRED, code, message)
