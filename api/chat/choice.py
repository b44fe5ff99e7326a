"""One choice of a chat completion: its tokens folded to a message, or to the pieces of one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from api.chat.calls import ChatFunction, ChatToolCall
from api.chat.logprobs import chat_logprobs
from api.chat.views import ChatChoice, ChatFinishReason, ChatLogprobs, ChatMessage
from api.tool_use import call_id
from db.stream import Token
from workers.text.parts import Arguments, CallBegun, Content, Part, merged
from workers.text.tokenizer import Tokenizer
from workers.text.tool_calls import CallSpelling, ToolCallParser

Delta = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """What reading a job's tokens depends on, beside them."""

    job_id: UUID
    spelling: CallSpelling | None = None  # of calls; None: there are none
    tokenizer: Tokenizer | None = None  # for log probabilities; None: nobody asked for them

    def call_id(self, choice: int, index: int) -> str:
        """The id of a call."""
        assert self.spelling is not None, "there are calls"
        return call_id(self.spelling.style, self.job_id, choice, index)

    def logprobs(self, tokens: Iterable[Token]) -> ChatLogprobs | None:
        """Of these tokens, if they were asked for."""
        if self.tokenizer is None:
            return None
        return ChatLogprobs(content=chat_logprobs(self.tokenizer, tokens), refusal=None)


def whole_choice(reading: Reading, index: int, tokens: Sequence[Token], finish_reason: str | None) -> ChatChoice:
    """The choice with all of its tokens."""
    message = message_of(reading, index, tokens)
    return ChatChoice(
        index=index,
        message=message,
        logprobs=reading.logprobs(tokens),
        finish_reason=chat_reason(finish_reason, len(message.tool_calls or [])),
    )


def message_of(reading: Reading, choice: int, tokens: Sequence[Token]) -> ChatMessage:
    """What all tokens of a choice say and call."""
    parser = ToolCallParser(reading.spelling)
    content = ""
    calls: list[ChatToolCall] = []
    arguments: list[list[str]] = []  # of each of them, in pieces
    for part in [part for token in tokens for part in parser.push(token.token_id, token.text)] + parser.finish():
        match part:
            case Content(text):
                content += text
            case CallBegun(index, name):
                function = ChatFunction(name=name, arguments="")
                calls.append(ChatToolCall(id=reading.call_id(choice, index), function=function))
                arguments.append([])
            case Arguments(index, text):
                arguments[index].append(text)
    for call, pieces in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(pieces)
    return ChatMessage(content=content if content or not calls else None, refusal=None, tool_calls=calls or None)


def chat_reason(finish_reason: str | None, num_calls: int) -> ChatFinishReason | None:
    """As chat has it: an output that calls tools has not ended, it waits for them."""
    if finish_reason == "stop" and num_calls:
        return "tool_calls"
    return finish_reason  # type: ignore[return-value]  # stop, length or None


class StreamedChoice:
    """The choice as it is written: pieces of its message, as chunks have them."""

    def __init__(self, reading: Reading, index: int) -> None:
        self._reading = reading
        self._index = index
        self._parser = ToolCallParser(reading.spelling)
        self._is_begun = False
        self._untold: list[Token] = []  # tokens whose log probabilities were not told yet

    def push(self, tokens: Sequence[Token]) -> list[Delta]:
        """What the next tokens add: the insides of chunks; maybe none."""
        self._untold += tokens
        parts = [part for token in tokens for part in self._parser.push(token.token_id, token.text)]
        return self._choices(parts)

    def end(self, finish_reason: str | None) -> list[Delta]:
        """What was held back, and the reason of the end."""
        deltas = self._choices(self._parser.finish())
        return [*deltas, self._choice({}, chat_reason(finish_reason, self._parser.num_calls))]

    def _choices(self, parts: Iterable[Part]) -> list[Delta]:
        deltas = [delta for part in merged(parts) if (delta := delta_of(self._reading, self._index, part)) is not None]
        if not self._is_begun:
            self._is_begun = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        return [self._choice(delta) for delta in deltas]

    def _choice(self, delta: Delta, finish_reason: str | None = None) -> Delta:
        told, self._untold = self._untold, []
        logprobs = self._reading.logprobs(told) if told else None
        said = None if logprobs is None else logprobs.model_dump(mode="json")
        return {"index": self._index, "delta": delta, "logprobs": said, "finish_reason": finish_reason}


def delta_of(reading: Reading, choice: int, part: Part) -> Delta | None:
    """What a part adds to the message of its choice, as a chunk has it; None for a call's end."""
    match part:
        case Content(text):
            return {"content": text}
        case CallBegun(index, name):
            call = ChatToolCall(id=reading.call_id(choice, index), function=ChatFunction(name=name, arguments=""))
            return {"tool_calls": [{"index": index, **call.model_dump(mode="json")}]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None
