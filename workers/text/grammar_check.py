"""`python -m workers.text.grammar_check`: tells whether grammars compile, each in a process that it may kill.

A few lines from a client can make the compiler run for ever, use up the stack or fill the memory. Here that ends a fork
of this process, which has read the tokenizer once. Requests come in and answers go out as JSON, an object per line.
"""

import json
import os
import resource
import signal
import sys
import threading
import traceback
from functools import lru_cache
from typing import Any

from workers.text.grammar import GrammarError, GrammarSpec, GrammarVocabulary, compile_grammar
from workers.text.tokenizer import Tokenizer

CPU_SECONDS = 3.0  # then SIGPROF ends the fork, also inside the compiler
MEMORY_BYTES = 4 << 30
STACK_BYTES = 4 << 20  # a quarter of what a worker's thread has: what fits here fits there
MAX_VOCABULARIES = 2


def main() -> None:
    """Answer until the input ends: `error`, why a grammar cannot be used or null, or `signal`, what ended its fork."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            vocabulary = _vocabulary(request["tokenizer_path"], request["vocab_size"])
        except GrammarError as error:
            _answer(error=str(error))
            continue
        pid = os.fork()
        if pid == 0:
            _check_and_exit(vocabulary, GrammarSpec(request["kind"], request["text"]))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            _answer(signal=os.WTERMSIG(status))


@lru_cache(MAX_VOCABULARIES)
def _vocabulary(tokenizer_path: str, vocab_size: int) -> GrammarVocabulary:
    tokenizer = Tokenizer.load(tokenizer_path)
    # The API does not know the model's end-of-sequence tokens: an id behind the last stands for them.
    end = max(vocab_size, tokenizer.vocab_size)
    return GrammarVocabulary(tokenizer, vocab_size=end + 1, eos_token_ids={end})


def _check_and_exit(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_check, args=(vocabulary, spec))
    thread.start()
    thread.join()
    os._exit(0)


def _check(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> None:
    try:
        compile_grammar(vocabulary, spec)
    except GrammarError as error:
        _answer(error=str(error))
    except BaseException:  # such as MemoryError: without an answer the signal is one
        traceback.print_exc()
        os.abort()
    else:
        _answer(error=None)


def _answer(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
