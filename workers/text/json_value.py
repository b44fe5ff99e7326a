"""Where a JSON value ends in text that comes a character at a time. Whether it is valid JSON is not looked at."""

WHITESPACE = " \t\r\n"

# Between two parts of a JSON text that a model is held to: nothing, a space, or a new line with its indent. Without a
# bound a model that is stuck may write blanks until its tokens are used up.
BETWEEN_PARTS = r"( |\n{1,2}[ \t]{0,20})?"


class JsonValue:
    """One value, from its first character on; whitespace before it is part of it."""

    def __init__(self) -> None:
        self.is_over = False  # nothing more belongs to it
        self._depth = 0  # of objects and lists
        self._is_string = False
        self._is_escaped = False
        self._is_scalar = False  # a number, true, false or null, which only the next character ends

    def push(self, character: str) -> bool:
        """Whether the character belongs to the value, or has come behind it."""
        if self._is_string:
            self._push_to_string(character)
        elif character == '"':
            self._is_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]" and self._depth > 0:
            self._depth -= 1
            self.is_over = self._depth == 0
        elif self._depth == 0 and (character in ",:}]" or (self._is_scalar and character in WHITESPACE)):
            self.is_over = True
            return False
        elif self._depth == 0 and character not in WHITESPACE:
            self._is_scalar = True
        return True

    def _push_to_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_string = False
            self.is_over = self._depth == 0
