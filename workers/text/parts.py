"""What the text of an output is made of: content, and function calls piece by piece."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A function is called; its arguments follow. Calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next piece of a call's arguments, which together are JSON."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """The call has all its arguments."""

    index: int


Part = Content | CallBegun | Arguments | CallEnded


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbours of one kind as one, and nothing that is empty."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Content | Arguments) and not part.text:
            continue
        if isinstance(part, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + part.text)
        elif isinstance(part, Arguments) and isinstance(last, Arguments) and part.index == last.index:
            found[-1] = Arguments(part.index, last.text + part.text)
        else:
            found.append(part)
    return found
