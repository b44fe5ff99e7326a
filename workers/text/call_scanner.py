"""One function call as models write it, a JSON object with a name and arguments, read a character at a time."""

import json
from collections.abc import Callable

from workers.text.json_value import WHITESPACE, JsonValue

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"


class CallScanner:
    """Reads `{"name": ..., "arguments": {...}}`, in whatever order, with other keys beside them.

    The arguments are passed on as they are written, once the name is known.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._taken: list[str] = []  # characters
        self.is_over = False  # the object is complete
        self.is_broken = False  # it is no such object
        self.has_arguments = False  # they have begun
        self._key = ""
        self._value = JsonValue()
        self._text: list[str] = []  # of the key or value that is being read, characters less the blanks before it
        self._untold: list[str] = []  # arguments that nobody took yet, in pieces
        self._state: Callable[[str], bool] = self._before_object

    @property
    def raw(self) -> str:
        """All that was taken."""
        return "".join(self._taken)

    def push(self, character: str) -> bool:
        """Whether the character was taken; not when the object turns out to be none, or is over."""
        if self.is_over or self.is_broken or not self._state(character):
            return False
        self._taken.append(character)
        return True

    def take_arguments(self) -> str:
        """What has come of the arguments since the last time; nothing before the name."""
        if self.name is None:
            return ""
        text = "".join(self._untold)
        self._untold.clear()
        return text

    def _break(self) -> bool:
        self.is_broken = True
        return False

    def _before_object(self, character: str) -> bool:
        if character in WHITESPACE:
            return True
        self._state = self._before_key
        return character == "{" or self._break()

    def _before_key(self, character: str) -> bool:
        if character == "}":
            return self._end_object()
        if character == '"':
            self._text, self._value, self._state = [character], JsonValue(), self._in_key
            return self._value.push(character)
        return character in WHITESPACE or self._break()

    def _in_key(self, character: str) -> bool:
        self._value.push(character)
        self._text.append(character)
        if self._value.is_over:
            self._key, self._state = str(_loads("".join(self._text))), self._before_value
        return True

    def _before_value(self, character: str) -> bool:
        if character == ":":
            self._text, self._value, self._state = [], JsonValue(), self._in_value
            return True
        return character in WHITESPACE or self._break()

    def _in_value(self, character: str) -> bool:
        is_taken = self._value.push(character)
        if is_taken:
            self._take_value(character)
        if self._value.is_over:
            self._end_value()
        return is_taken or self._state(character)

    def _take_value(self, character: str) -> None:
        if self._key in ARGUMENT_KEYS and character == "{" and not self._text:
            self.has_arguments = True
        if self._key in ARGUMENT_KEYS and self.has_arguments:
            self._untold.append(character)
        elif self._text or not character.isspace():
            self._text.append(character)

    def _end_value(self) -> None:
        self._state = self._behind_value
        if self._key == NAME_KEY:
            name = _loads("".join(self._text))
            self.name = name if isinstance(name, str) else self.name
        elif self._key in ARGUMENT_KEYS and not self.has_arguments:
            arguments = _loads("".join(self._text))
            if isinstance(arguments, str) and arguments:  # some write them as a text that holds the JSON
                self._untold, self.has_arguments = [arguments], True

    def _behind_value(self, character: str) -> bool:
        if character == "}":
            return self._end_object()
        if character == ",":
            self._state = self._before_key
            return True
        return character in WHITESPACE or self._break()

    def _end_object(self) -> bool:
        self.is_over = True
        if not self.has_arguments:
            self._untold = [NO_ARGUMENTS]
        return True


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
