"""A batch's input file, line by line: what is wrong with it, or in which order its lines are to run.

Only what the batch needs of a line is looked at here. Whether its endpoint takes the body is told when the line runs,
as it would be to a client, in the error file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from api.body_limit import MAX_BODY_BYTES
from api.errors import wrong_field
from api.fields import MetadataValue, RequestObject
from db.batch_lines import LinePlace
from db.file_store import CHUNK_BYTES, Source
from db.texts import storable

MAX_LINES = 50_000
MAX_ERRORS = 100  # told of one file
PREFIX_CHARACTERS = 512  # compared as they are; of longer beginnings, digests
PREFIX_LENGTHS = (768, 1152, 1728, 2592, 3888, 5832, 8748, 13122)  # each half as long again
PREFIX_FIELDS = ("model", "instructions", "previous_response_id", "messages", "prompt", "input")


class LineFields(RequestObject):
    """A line of the input."""

    custom_id: Annotated[MetadataValue, Field(min_length=1)]
    method: Literal["POST"]
    url: MetadataValue
    body: dict[str, Any]


@dataclass
class CheckedInput:
    """What an input file has. With errors, its lines are not to be run."""

    errors: list[dict[str, Any]] = field(default_factory=list)  # {code, line, message, param}
    places: list[LinePlace] = field(default_factory=list)  # in the order of the file
    models: set[str] = field(default_factory=set)

    @property
    def model(self) -> str | None:
        """The model of all lines, if it is one."""
        return next(iter(self.models)) if len(self.models) == 1 else None


class WrongLine(Exception):
    """A line that cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def check_input(source: Source, endpoint: str) -> CheckedInput:
    """Read the whole file, which takes little of the memory; raises what the file's store raises."""
    checked = CheckedInput()
    lines = _Lines(endpoint)
    number = 0
    try:
        for number, (first_byte, text) in enumerate(_split(source), 1):
            if text.strip():
                _look_at(checked, lines, number, first_byte, text)
            if len(checked.errors) >= MAX_ERRORS:
                break
        if not lines.found and not checked.errors:
            raise WrongLine("empty_file", "The file has no lines; send one request per line, as JSON.")
    except WrongLine as wrong:  # of the file as a whole, from here on
        checked.errors.append(_error(wrong, number + 1 if wrong.code == "line_too_long" else None))
    checked.places = lines.in_order()
    checked.models = lines.models
    return checked


def parse_body(text: bytes) -> dict[str, Any]:
    """The body of a line that was checked."""
    body: dict[str, Any] = _json(text)["body"]
    return body


class _Lines:
    """The lines found so far."""

    def __init__(self, endpoint: str) -> None:
        self.models: set[str] = set()
        self.found: list[tuple[bytes, int, str, int, int]] = []  # prefix, line, custom_id, first byte, bytes
        self._endpoint = endpoint
        self._first_of: dict[str, int] = {}  # custom_id to the first line that has it

    def add(self, number: int, first_byte: int, text: bytes) -> None:
        """Take a line; raises WrongLine."""
        if len(self.found) >= MAX_LINES:
            raise WrongLine("too_many_lines", f"The file has more than {MAX_LINES:,} lines; split it.")
        fields = _fields(text)
        if fields.url != self._endpoint:
            shown = fields.url[:60]
            message = f"'url' is '{shown}'; the batch was made for '{self._endpoint}'."
            raise WrongLine("mismatched_url", message, "url")
        if fields.body.get("stream"):
            raise WrongLine(
                "invalid_value", "'body.stream' cannot be true: a batch's results are files.", "body.stream"
            )
        first = self._first_of.setdefault(fields.custom_id, number)
        if first != number:
            message = f"'custom_id' is that of line {first:,}; each line needs one of its own."
            raise WrongLine("duplicate_custom_id", message, "custom_id")
        model = fields.body.get("model")
        if isinstance(model, str) and len(self.models) < 2:
            self.models.add(_storable(model[:256]))
        self.found.append((prefix_key(fields.body), number, fields.custom_id, first_byte, len(text)))

    def in_order(self) -> list[LinePlace]:
        """Lines that begin alike one after the other, in the order of the file otherwise."""
        ordered = sorted((key, number) for key, number, *_ in self.found)
        places = {number: place for place, (_, number) in enumerate(ordered)}
        return [LinePlace(number, name, places[number], first, size) for _, number, name, first, size in self.found]


def prefix_key(body: dict[str, Any]) -> bytes:
    """Sorts what begins alike together; about 600 bytes at most, however long it is."""
    parts = (body[name] for name in PREFIX_FIELDS if name in body)
    text = "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)[: PREFIX_LENGTHS[-1]]
    key = text[:PREFIX_CHARACTERS].encode(errors="replace")
    for length in PREFIX_LENGTHS:
        key += blake2b(text[:length].encode(errors="replace"), digest_size=4).digest()
    return key


def _look_at(checked: CheckedInput, lines: _Lines, number: int, first_byte: int, text: bytes) -> None:
    try:
        lines.add(number, first_byte, text)
    except WrongLine as wrong:
        if wrong.code == "too_many_lines":
            raise
        checked.errors.append(_error(wrong, number))


def _fields(text: bytes) -> LineFields:
    data = _json(text)
    try:
        return LineFields.model_validate(data)
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        refusal = wrong_field(first | {"loc": ("line", *first["loc"])})
        raise WrongLine(refusal.code, refusal.message, refusal.param) from None


def _json(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise WrongLine("invalid_json_line", "The line is not UTF-8.") from None
    except RecursionError:
        raise WrongLine("invalid_json_line", "The line is nested too deeply.") from None
    except ValueError as error:
        raise WrongLine("invalid_json_line", f"The line is not valid JSON: {error}.") from None


def _split(source: Source) -> Iterator[tuple[int, bytes]]:
    """Each line's first byte, and the line without its end; raises WrongLine for one longer than any request may be."""
    rest, first_byte = b"", 0
    while chunk := source.read(CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield first_byte, line
            first_byte += len(line) + 1
        if len(rest) > MAX_BODY_BYTES:
            raise WrongLine("line_too_long", f"The line is over {MAX_BODY_BYTES:,} bytes.")
    if rest:
        yield first_byte, rest


def _error(wrong: WrongLine, number: int | None) -> dict[str, Any]:
    param = None if wrong.param is None else _storable(wrong.param)
    return {"code": wrong.code, "line": number, "message": _storable(wrong.message), "param": param}


def _storable(text: str) -> str:
    """The text, without what JSON can spell and Postgres cannot keep."""
    return storable(text.encode(errors="replace").decode())
