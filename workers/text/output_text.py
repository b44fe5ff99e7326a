"""The text of one job's output, token by token: detokenizer and stop strings in one place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.text.detokenizer import Detokenizer
from workers.text.stop_matcher import StopMatcher
from workers.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """The text that one token's event carries, possibly empty, and whether a stop string ended the output."""

    text: str
    is_stopped: bool


class OutputText:
    """A function of the token ids pushed so far and of nothing else, so that a resumed job writes the same text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stop_matcher = StopMatcher(stops)
        self._pieces: list[str] = []
        self.offsets: list[int] = []  # characters of `text` delivered once token i was; written by push
        self.is_stopped = False  # by a stop string; nothing may be pushed after it

    @property
    def text(self) -> str:
        """What was delivered so far: the pieces, joined. Text still held is not part of it."""
        return "".join(self._pieces)

    def push(self, token_id: int, *, is_last: bool, hide: bool = False) -> Piece:
        """The piece of the next token. The last one carries all that was held; a hidden one has no text of its own.

        Hide the stop or end-of-sequence token that ended the output.
        """
        assert not self.is_stopped, "a token after a stop string"
        text = "" if hide else self._detokenizer.push(token_id)
        if is_last:
            text += self._detokenizer.flush()
        match = self._stop_matcher.push(text)
        self.is_stopped = match.is_stopped
        shown = match.text
        if is_last and not match.is_stopped:
            shown += self._stop_matcher.flush()
        self._pieces.append(shown)
        self.offsets.append((self.offsets[-1] if self.offsets else 0) + len(shown))
        return Piece(shown, match.is_stopped)

    def replay(self, token_ids: Iterable[int]) -> list[Piece]:
        """The pieces of a resumed job's delivered tokens, none of them the last. Ends early at a stop string.

        Where the delivered tokens end the job already, replay all but the last and push that one as the last.
        """
        pieces: list[Piece] = []
        for token_id in token_ids:
            pieces.append(self.push(token_id, is_last=False))
            if self.is_stopped:
                break
        return pieces
