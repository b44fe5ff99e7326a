"""What the readers of all spellings have in common: unread text, a mode that reads it, and a call as a JSON object."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from workers.text.call_scanner import CallScanner
from workers.text.json_value import WHITESPACE
from workers.text.parts import Arguments, CallBegun, CallEnded, Content, Part


class CallReader(ABC):
    """Reads text to its parts, however it is cut into pieces.

    A mode is a method that takes from `_unread` what it can and says whether it got anywhere: if not, more must come.
    What begins like a call and is none is content.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._unread = ""
        self._parts: list[Part] = []
        self._num_calls = 0
        self._is_last = False  # no text follows
        self._lead = ""  # what stood before the call that is read, in case that it is none
        self._call = CallScanner()
        self._is_begun = False
        self._mode: Callable[[], bool] = self._start

    def push(self, text: str) -> list[Part]:
        """What follows from the next piece of text."""
        self._unread += text
        while self._unread and self._mode():
            pass
        return self._taken()

    def finish(self) -> list[Part]:
        """What was held back, now that nothing follows."""
        self._is_last = True
        while self._unread and self._mode():
            pass
        if self._mode == self._in_call and not self._is_begun:
            self._tell(self._lead + self._call.raw)
        return self._taken()

    @abstractmethod
    def _start(self) -> bool:
        """The first mode."""

    @abstractmethod
    def _behind_call(self) -> bool:
        """The mode behind a call's object."""

    @abstractmethod
    def _give_up(self) -> None:
        """Choose the mode behind what looked like a call and was told as content."""

    def _accepts(self, name: str) -> bool:
        """Whether an object with this name, and arguments, is a call."""
        return bool(name)

    def _tell(self, text: str) -> None:
        self._parts.append(Content(text))

    def _begin_call(self, lead: str) -> None:
        self._call, self._is_begun, self._lead, self._mode = CallScanner(), False, lead, self._in_call

    def _in_call(self) -> bool:
        """The mode within a call's object."""
        call, num_taken = self._call, 0
        while num_taken < len(self._unread) and call.push(self._unread[num_taken]):
            num_taken += 1
        self._unread = self._unread[num_taken:]
        is_whole = call.name is not None and (call.has_arguments or call.is_over)
        if not self._is_begun and is_whole and call.name is not None and self._accepts(call.name):
            self._is_begun = True
            self._parts.append(CallBegun(self._num_calls, call.name))
            self._num_calls += 1
        if self._is_begun:
            self._parts.append(Arguments(self._num_calls - 1, call.take_arguments()))
        if call.is_over or call.is_broken:
            self._end_call()
        return num_taken > 0 or call.is_over or call.is_broken

    def _end_call(self) -> None:
        if self._is_begun:
            self._parts.append(CallEnded(self._num_calls - 1))
            self._mode = self._behind_call
        else:
            self._tell(self._lead + self._call.raw)
            self._give_up()

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts


class MarkedCallReader(CallReader):
    """Of spellings in which a marker announces calls. Blanks around calls are dropped."""

    def __init__(self, names: Collection[str], marker: str) -> None:
        super().__init__(names)
        self._marker = marker
        self._is_behind_call = False  # blanks that follow are no content

    def _start(self) -> bool:
        """The mode of content."""
        if self._is_behind_call:
            self._unread = self._unread.lstrip(WHITESPACE)
        before, marker, after = self._unread.partition(self._marker)
        if marker:
            self._tell(before.rstrip(WHITESPACE))
            self._unread = after
            self._behind_marker()
            return True
        num_shown = len(self._unread) if self._is_last else len(self._unread) - self._num_held()
        self._tell(self._unread[:num_shown])
        self._unread = self._unread[num_shown:]
        self._is_behind_call = self._is_behind_call and num_shown == 0
        return False

    @abstractmethod
    def _behind_marker(self) -> None:
        """Choose the mode there."""

    def _give_up(self) -> None:
        self._is_behind_call, self._mode = False, self._start

    def _num_held(self) -> int:
        """Characters at the end that may belong to a marker, with the blanks before it."""
        text = self._unread
        starts = (
            i for i in range(max(0, len(text) - len(self._marker)), len(text)) if self._marker.startswith(text[i:])
        )
        return len(text) - len(text[: next(starts, len(text))].rstrip(WHITESPACE))
