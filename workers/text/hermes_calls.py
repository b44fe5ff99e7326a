"""Calls as Hermes and Qwen models write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from collections.abc import Collection

from workers.text.call_reader import MarkedCallReader
from workers.text.json_value import WHITESPACE
from workers.text.tool_styles import BEGIN, END


class HermesCalls(MarkedCallReader):
    """Calls may stand anywhere in the text."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names, BEGIN)

    def _behind_marker(self) -> None:
        self._begin_call(BEGIN)

    def _behind_call(self) -> bool:
        """Read over the closing marker; some models leave it out."""
        text = self._unread.lstrip(WHITESPACE)
        if END.startswith(text) and text != END:
            self._unread = "" if self._is_last else self._unread
            return False
        self._unread = text.removeprefix(END)
        self._is_behind_call, self._mode = True, self._start
        return True
