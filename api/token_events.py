"""The `job.token` events of one job: a fold over its tokens, so that whoever reads them again is told the same."""

from collections.abc import Iterable
from typing import Any

from api.chat.choice import Delta, Reading, delta_of
from api.follow import Tokens
from api.kept_spelling import spelling_in
from api.sse import frame
from db.job_queries import JobRow
from db.stream import Token
from workers.text.parts import Part
from workers.text.tool_calls import ToolCallParser

FIRST_TOKEN = 2  # number of the event of token 0


class TokenEvents:
    """Where the job has tools, an event also says what its token adds to the content and to the calls."""

    def __init__(self, row: JobRow) -> None:
        self._reading = Reading(row.job.id, spelling_in(row.input.request))
        self.has_calls = self._reading.spelling is not None  # then they depend on all tokens before
        self._parsers = [ToolCallParser(self._reading.spelling) for _ in range(row.job.num_choices)]

    def frames(self, page: Tokens, next_number: int) -> bytes:
        """Of the next tokens; those numbered below `next_number` are read, and not told."""
        numbered = enumerate(page.tokens, FIRST_TOKEN + page.first_index)
        said = [(number, self._said(number - FIRST_TOKEN, token)) for number, token in numbered]
        return b"".join(frame(data, event="job.token", number=number) for number, data in said if number >= next_number)

    def _said(self, index: int, token: Token) -> dict[str, Any]:
        data = {"index": index, "choice": token.choice, "token_id": token.token_id, "text": token.text}
        data["logprobs"] = token.logprobs
        if self.has_calls:
            data["delta"] = self._delta(token)
        return data

    def _delta(self, token: Token) -> Delta | None:
        """What the token adds; None for one that adds nothing yet."""
        parts = self._parsers[token.choice].push(token.token_id, token.text)
        return _joined(self._reading, token.choice, parts)


def _joined(reading: Reading, choice: int, parts: Iterable[Part]) -> Delta | None:
    """The parts as one delta of chat."""
    deltas = [delta for part in parts if (delta := delta_of(reading, choice, part)) is not None]
    content = "".join(delta.get("content", "") for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    joined: Delta = {"content": content} if content else {}
    return joined | {"tool_calls": calls} if calls else joined or None
