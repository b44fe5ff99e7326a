"""Content and function calls in what a model writes.

A pure fold over the tokens that were delivered: what a token adds depends on it and those before it, so that whoever
reads them again, from Redis or Postgres, after a crash or in another process, finds the same.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from workers.text.call_reader import CallReader
from workers.text.hermes_calls import HermesCalls
from workers.text.llama_calls import LlamaCalls
from workers.text.mistral_calls import MistralCalls
from workers.text.parts import CallBegun, Content, Part, merged
from workers.text.tokenizer import Tokenizer
from workers.text.tool_styles import MARKERS, ToolStyle

READERS: dict[ToolStyle, Callable[[Collection[str]], CallReader]] = {
    "hermes": HermesCalls,
    "llama3": LlamaCalls,
    "mistral": MistralCalls,
    "mistral_named": MistralCalls,
}


@dataclass(frozen=True)
class CallSpelling:
    """What reading a job's calls depends on, beside its tokens."""

    style: ToolStyle
    names: frozenset[str]  # of the functions there are
    markers: Mapping[int, str]  # of tokens that have no text in the output, but a meaning here; by their ids
    most_calls: int | None = None  # further ones are dropped; None: any number


class ToolCallParser:
    """Takes a choice's tokens one after the other and gives their parts. Without a spelling all text is content."""

    def __init__(self, spelling: CallSpelling | None) -> None:
        self._spelling = spelling
        self._reader = None if spelling is None else READERS[spelling.style](spelling.names)
        self.num_calls = 0  # begun so far

    def push(self, token_id: int, text: str) -> list[Part]:
        """What follows from the next token."""
        if self._reader is None or self._spelling is None:
            return [Content(text)] if text else []
        return self._seen(self._reader.push(self._spelling.markers.get(token_id, "") + text))

    def finish(self) -> list[Part]:
        """What was held back, now that no token follows. A call that was cut short does not end."""
        return [] if self._reader is None else self._seen(self._reader.finish())

    def _seen(self, parts: list[Part]) -> list[Part]:
        most = None if self._spelling is None else self._spelling.most_calls
        kept = [part for part in parts if isinstance(part, Content) or most is None or part.index < most]
        self.num_calls += sum(isinstance(part, CallBegun) for part in kept)
        return merged(kept)


def special_markers(tokenizer: Tokenizer) -> dict[int, str]:
    """The markers that are special tokens of this vocabulary: they have no text in the output."""
    ids = {tokenizer.token_id(marker): marker for marker in MARKERS}
    return {i: marker for i, marker in ids.items() if i is not None and tokenizer.is_special(i)}
