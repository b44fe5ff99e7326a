"""What a response writes, as items, and how they grow: a fold over the tokens of its job.

Without tools there is one message, and each token is told, its text empty or not. With tools what a token adds is what
its reading adds: text, a call, more of its arguments, or nothing yet.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any
from uuid import UUID

from api.chat.choice import Reading
from api.chat.logprobs import chat_logprobs
from db.ids import public_id
from db.stream import Token
from workers.text.parts import Arguments, CallBegun, CallEnded, Content, Part
from workers.text.tool_calls import ToolCallParser

Item = dict[str, Any]
Told = tuple[str, dict[str, Any]]  # an event's type, and what it says


class ResponseItems:
    """The items so far; each call returns the events of what it added."""

    def __init__(self, reading: Reading) -> None:
        self.items: list[Item] = []
        self._reading = reading
        self._parser = ToolCallParser(reading.spelling)
        self._is_open = False  # the last item goes on
        self._told: list[Told] = []

    def push(self, tokens: Sequence[Token]) -> list[Told]:
        """The next tokens."""
        for token in tokens:
            parts = self._parts(token)
            logprobs = self._logprobs(token) if any(isinstance(part, Content) for part in parts) else []
            self._take(parts, logprobs)
        return self._flush()

    def finish(self, *, is_complete: bool) -> list[Told]:
        """The end. One that is not complete was cut short; a complete one has a message at least, maybe empty."""
        self._take(self._parser.finish(), [])
        if is_complete and not self.items:
            self._begin_message()
        self._close("completed" if is_complete else "incomplete")
        return self._flush()

    def _parts(self, token: Token) -> list[Part]:
        if self._reading.spelling is None:
            return [Content(token.text)]
        return self._parser.push(token.token_id, token.text)

    def _take(self, parts: Iterable[Part], logprobs: list[Any]) -> None:
        for part in parts:
            match part:
                case Content(text):
                    self._add_text(text, logprobs)
                case CallBegun(index, name):
                    self._begin_call(index, name)
                case Arguments(_, text):
                    self._add_arguments(text)
                case CallEnded():
                    self._close("completed")

    def _add_text(self, text: str, logprobs: list[Any]) -> None:
        if not self._is_open or self.items[-1]["type"] != "message":
            self._close("completed")
            self._begin_message()
        part = self.items[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        self._tell_of_part("response.output_text.delta", delta=text, logprobs=logprobs)

    def _begin_message(self) -> None:
        said = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
        item: Item = {"id": self._id("msg_")} | said
        self._begin(item)
        item["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        self._tell_of_part("response.content_part.added", part=deepcopy(item["content"][0]))

    def _begin_call(self, index: int, name: str) -> None:
        self._close("completed")
        call_id = self._reading.call_id(0, index)
        said = {"type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": ""}
        self._begin({"id": self._id("fc_")} | said)

    def _add_arguments(self, text: str) -> None:
        self.items[-1]["arguments"] += text
        self._tell_of_item("response.function_call_arguments.delta", delta=text)

    def _begin(self, item: Item) -> None:
        self.items.append(item)
        self._is_open = True
        self._told.append(("response.output_item.added", {"output_index": self._index, "item": deepcopy(item)}))

    def _close(self, status: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            part = deepcopy(item["content"][0])
            self._tell_of_part("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
            self._tell_of_part("response.content_part.done", part=part)
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            self._tell_of_item("response.function_call_arguments.done", **done)
        self._told.append(("response.output_item.done", {"output_index": self._index, "item": deepcopy(item)}))

    def _tell_of_part(self, kind: str, **said: Any) -> None:
        self._tell_of_item(kind, content_index=0, **said)

    def _tell_of_item(self, kind: str, **said: Any) -> None:
        self._told.append((kind, {"item_id": self.items[-1]["id"], "output_index": self._index, **said}))

    def _flush(self) -> list[Told]:
        told, self._told = self._told, []
        return told

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _id(self, prefix: str) -> str:
        """Of the item that comes next."""
        return item_id(prefix, self._reading.job_id, len(self.items))

    def _logprobs(self, token: Token) -> list[Any]:
        if self._reading.tokenizer is None:
            return []
        return [each.model_dump(mode="json") for each in chat_logprobs(self._reading.tokenizer, [token])]


def item_id(prefix: str, job_id: UUID, index: int) -> str:
    """The id of a response's item: of what is told again, the same again."""
    return public_id(prefix, job_id) + (f"_{index}" if index else "")
