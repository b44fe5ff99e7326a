"""Calls as Mistral models write them, older ones as a list, newer ones each behind a marker of its own:

`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]` or `[TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]...`.
"""

from collections.abc import Collection

from workers.text.call_reader import MarkedCallReader
from workers.text.json_value import WHITESPACE, JsonValue
from workers.text.parts import Arguments, CallBegun, CallEnded
from workers.text.tool_styles import ARGUMENTS, CALL_ID, CALLS


class MistralCalls(MarkedCallReader):
    """Calls may stand anywhere in the text; usually they end it."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names, CALLS)
        self._is_list = False
        self._arguments = JsonValue()

    def _behind_marker(self) -> None:
        self._is_list, self._mode = False, self._before_call

    def _before_call(self) -> bool:
        text = self._unread.lstrip(WHITESPACE)
        if not text:
            return False
        if text.startswith("[") and not self._is_list:
            self._is_list, self._unread = True, text[1:]
        elif text.startswith("{") or self._is_list:
            self._begin_call(CALLS + ("[" if self._is_list else ""))
        else:
            self._mode = self._in_name
        return True

    def _in_name(self) -> bool:
        """Of a call that is no object: all before its arguments, less markers."""
        before, brace, after = self._unread.partition("{")
        if not brace:
            return self._end_name_without_arguments()
        name = before.partition(ARGUMENTS)[0].partition(CALL_ID)[0].strip()
        self._parts.append(CallBegun(self._num_calls, name))
        self._num_calls += 1
        self._unread, self._arguments, self._mode = brace + after, JsonValue(), self._in_arguments
        return True

    def _end_name_without_arguments(self) -> bool:
        if self._is_last:
            self._tell(CALLS + self._unread)
            self._unread = ""
        return False

    def _in_arguments(self) -> bool:
        num_taken = 0
        while num_taken < len(self._unread) and not self._arguments.is_over:
            self._arguments.push(self._unread[num_taken])
            num_taken += 1
        self._parts.append(Arguments(self._num_calls - 1, self._unread[:num_taken]))
        self._unread = self._unread[num_taken:]
        if self._arguments.is_over:
            self._parts.append(CallEnded(self._num_calls - 1))
            self._is_behind_call, self._mode = True, self._start
        return num_taken > 0

    def _behind_call(self) -> bool:
        text = self._unread.lstrip(WHITESPACE)
        if not text:
            return False
        if self._is_list and text.startswith(","):
            self._unread, self._mode = text[1:], self._before_call
        else:
            self._unread = text.removeprefix("]") if self._is_list else text
            self._is_behind_call, self._mode = True, self._start
        return True
