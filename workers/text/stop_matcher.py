"""Finds stop strings in text that arrives in pieces, and lets no part of one through."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Match:
    """What a push lets through, and whether a stop string is complete."""

    text: str
    is_stopped: bool


@dataclass
class _Node:
    """A prefix of some stop string, in an Aho-Corasick automaton."""

    depth: int  # characters in the prefix
    children: dict[str, "_Node"] = field(default_factory=dict)
    fallback: "_Node | None" = None  # the longest proper suffix that is a prefix too; None at the root
    stop_length: int = 0  # characters of the longest stop string that ends here; 0: none does


class StopMatcher:
    """Holds back the longest suffix that could begin a stop string, however the text is cut into pieces.

    The stop string that is complete first wins; of several that end with the same character, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = _build(stops)
        self._node = self._root
        self._held = ""  # always the prefix that self._node stands for

    def push(self, text: str) -> Match:
        """The text that is safe to show; when a stop string is complete, what stood before it."""
        if not self._root.children:
            return Match(text, is_stopped=False)
        node = self._node
        seen = self._held + text
        for index in range(len(self._held), len(seen)):
            node = _advance(self._root, node, seen[index])
            if node.stop_length > 0:
                self._node, self._held = self._root, ""
                return Match(seen[: index + 1 - node.stop_length], is_stopped=True)
        num_shown = len(seen) - node.depth
        self._node, self._held = node, seen[num_shown:]
        return Match(seen[:num_shown], is_stopped=False)

    def flush(self) -> str:
        """The text still held, now that no more follows."""
        text = self._held
        self._node, self._held = self._root, ""
        return text


def _advance(root: _Node, node: _Node, character: str) -> _Node:
    while character not in node.children and node.fallback is not None:
        node = node.fallback
    return node.children.get(character, root)


def _build(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.stop_length = node.depth
    _link(root)
    return root


def _link(root: _Node) -> None:
    """Give each node its fallback, in order of depth, since each follows from a shallower one."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for character, child in node.children.items():
            child.fallback = root if node.fallback is None else _advance(root, node.fallback, character)
            child.stop_length = child.stop_length or child.fallback.stop_length
            waiting.append(child)
