"""Calls as Llama 3 models write them: an output that is `{"name": ..., "parameters": {...}}`, several parted by `;`."""

from workers.text.call_reader import CallReader
from workers.text.json_value import WHITESPACE

PYTHON_TAG = "<|python_tag|>"  # a special token, which has no text, in Llama's own vocabulary


class LlamaCalls(CallReader):
    """Nothing announces a call, so only one that begins the output, of a function that there is, is taken for one."""

    def _start(self) -> bool:
        text = self._unread.lstrip(WHITESPACE)
        if text.startswith("{"):
            self._begin_call(self._unread[: -len(text)])
            self._unread = text
        elif text.startswith(PYTHON_TAG):
            self._unread = text.removeprefix(PYTHON_TAG)
        elif PYTHON_TAG.startswith(text) and not self._is_last:
            return False
        else:
            self._mode = self._in_content
        return True

    def _in_content(self) -> bool:
        self._tell(self._unread)
        self._unread = ""
        return False

    def _behind_call(self) -> bool:
        text = self._unread.lstrip(WHITESPACE)
        if not text:
            self._unread = ""
            return False
        self._unread = text.removeprefix(";")
        self._mode = self._behind_separator if text.startswith(";") else self._in_content
        return True

    def _behind_separator(self) -> bool:
        text = self._unread.lstrip(WHITESPACE)
        if not text:
            return False
        self._unread = text
        if text.startswith("{"):
            self._begin_call("")
        else:
            self._mode = self._in_content
        return True

    def _give_up(self) -> None:
        self._mode = self._in_content

    def _accepts(self, name: str) -> bool:
        return name in self._names
