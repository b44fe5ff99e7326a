"""Compiles grammars beside the engine thread, each once, within a time limit."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from workers.text.grammar import Grammar, GrammarError, GrammarSpec, GrammarVocabulary, compile_grammar
from workers.text.tokenizer import Tokenizer

NUM_THREADS = 2
COMPILE_SECONDS = 30.0
STACK_BYTES = 16 << 20  # the compiler recurses; what the API accepted has fitted into a quarter of this
MAX_KEPT = 256

Made = TypeVar("Made")


class GrammarCompiler:
    """Compiled grammars by their text. Any thread may ask."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        timeout_seconds: float = COMPILE_SECONDS,
    ) -> None:
        """Takes no time: the vocabulary is read with the first grammar, by the thread that compiles it.

        That takes seconds where there are many tokens, in most of which llguidance lets no other Python thread run.
        For a tokenizer that llguidance does not know every grammar fails, with that reason.
        """
        self._read_vocabulary = partial(
            GrammarVocabulary, tokenizer, vocab_size=vocab_size, eos_token_ids=frozenset(eos_token_ids)
        )
        self._reading = threading.Lock()
        self._vocabulary: GrammarVocabulary | GrammarError | None = None  # under that lock, once
        self._timeout_seconds = timeout_seconds
        self._queue: SimpleQueue[tuple[GrammarSpec, Future[Grammar]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[GrammarSpec, Future[Grammar]] = OrderedDict()  # under the lock; the latest last
        for _ in range(NUM_THREADS):
            self._start_thread()

    def compile(self, spec: GrammarSpec) -> Future[Grammar]:
        """Soon: the grammar at its beginning, to be forked for each output; or the GrammarError that says why not."""
        with self._lock:
            future = self._compiled.get(spec)
            if future is None:
                future = self._compiled[spec] = Future()
                self._queue.put((spec, future))
            self._compiled.move_to_end(spec)
            if len(self._compiled) > MAX_KEPT:
                self._compiled.popitem(last=False)
        return future

    def _start_thread(self) -> None:
        with self._lock:
            default = threading.stack_size(STACK_BYTES)
            try:
                threading.Thread(target=self._serve, name="grammars", daemon=True).start()
            finally:
                threading.stack_size(default)

    def _serve(self) -> None:
        """Compile one after the other, until one takes too long: then another thread has taken this one's place."""
        while True:
            spec, future = self._queue.get()
            vocabulary = self._shared_vocabulary()  # a grammar's time does not count before it is there
            timer = threading.Timer(self._timeout_seconds, self._give_up, [future])
            timer.daemon = True
            timer.start()
            is_in_time = _settle(future, _compile(vocabulary, spec))
            timer.cancel()
            if not is_in_time:
                return

    def _shared_vocabulary(self) -> GrammarVocabulary | GrammarError:
        """The one that every grammar is compiled for. Whoever is first reads it, and the others wait for that."""
        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = _errors_caught(self._read_vocabulary)
        return self._vocabulary

    def _give_up(self, future: Future[Grammar]) -> None:
        message = f"it was not compiled within {self._timeout_seconds:g} seconds"
        if _settle(future, GrammarError(message)):
            self._start_thread()


def _compile(vocabulary: GrammarVocabulary | GrammarError, spec: GrammarSpec) -> Grammar | GrammarError:
    if isinstance(vocabulary, GrammarError):
        return vocabulary
    return _errors_caught(partial(compile_grammar, vocabulary, spec))


def _errors_caught(make: Callable[[], Made]) -> Made | GrammarError:
    """What it makes, or why it could not: whatever that is, a panic in llguidance too, it fails jobs and no thread."""
    try:
        return make()
    except GrammarError as error:
        return error
    except BaseException as error:
        return GrammarError(f"{type(error).__name__}: {error}")


def _settle(future: Future[Grammar], result: Grammar | GrammarError) -> bool:
    """Whether the future had no result before."""
    try:
        if isinstance(result, GrammarError):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:
        return False
    return True
