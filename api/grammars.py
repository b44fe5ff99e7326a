"""Whether what clients prescribe for an output compiles: asked of a child process, which no grammar can harm."""

import asyncio
import json
import logging
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO

from api.cache import TtlCache
from db.models import Worker
from db.sampling import StructuredOutput

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "workers.text.grammar_check")
KEEP_SECONDS = 3600
MAX_KEPT = 256
STOP_SECONDS = 5

TOO_SLOW = "compiling it takes too long: make it simpler"
TOO_COMPLEX = "compiling it takes too much memory, or it is nested too deeply: make it simpler"


class CheckFailed(Exception):
    """The check itself is broken, whatever the grammar."""


class GrammarChecks:
    """Owns the child, which is started when it is first needed, and again should it die."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None  # whoever has the lock
        self._lock = asyncio.Lock()
        self._reasons: TtlCache[tuple[str, int, StructuredOutput], str | None] = TtlCache(
            KEEP_SECONDS, max_size=MAX_KEPT
        )

    async def reason(self, card: Worker, output: StructuredOutput) -> str | None:
        """Why no output of this model can be held to `output`, or None. The first of a model reads its tokenizer.

        Raises CheckFailed, for example when that file cannot be read.
        """
        path, vocab_size = card.tokenizer_path, card.vocab_size

        async def ask() -> str | None:
            request = {"tokenizer_path": path, "vocab_size": vocab_size, "kind": output.kind, "text": output.text}
            async with self._lock:
                return await asyncio.to_thread(self._ask, json.dumps(request))

        return await self._reasons.get((path, vocab_size, output), ask)

    async def close(self) -> None:
        """End the child."""
        async with self._lock:
            if self._process is not None:
                await asyncio.to_thread(_stop, self._process)
                self._process = None

    def _ask(self, request: str) -> str | None:
        if self._process is None:
            # Of its own session, so that Ctrl-C leaves its end to us.
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        line = _exchange(self._process, request)
        if not line:
            code = _stop(self._process)
            self._process = None
            raise CheckFailed(f"the process that checks grammars ended with exit code {code}")
        answer = json.loads(line)
        if "signal" in answer:
            log.warning("a grammar could not be compiled", extra=answer)
            return TOO_SLOW if answer["signal"] == signal.SIGPROF else TOO_COMPLEX
        error: str | None = answer["error"]
        return error


def _exchange(process: subprocess.Popen[str], request: str) -> str:
    """The answer's line; empty when the child died."""
    try:
        stdin, stdout = _pipes(process)
        stdin.write(f"{request}\n")
        stdin.flush()
        return stdout.readline()
    except BrokenPipeError:
        return ""


def _stop(process: subprocess.Popen[str]) -> int:
    """Let the child end, as it does when its input ends, and return its exit code."""
    stdin, stdout = _pipes(process)
    with suppress(BrokenPipeError):
        stdin.close()
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        stdout.close()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout
