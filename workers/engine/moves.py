"""What must be copied before a step computes: between blocks, host memory and disk."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Moves:
    """Copies of whole blocks, executed in the order of the fields, each list from its first to its last.

    The order makes reuse safe within one batch: a host slot is saved before it is filled anew, a block before it is
    written, and what a block gives up is read before something is loaded into it.
    """

    spills: list[tuple[int, bytes]] = field(default_factory=list)  # host slot -> file of that key
    fills: list[tuple[bytes, int]] = field(default_factory=list)  # file of that key, already read -> host slot
    offloads: list[tuple[int, int]] = field(default_factory=list)  # block -> host slot
    copies: list[tuple[int, int]] = field(default_factory=list)  # block -> block, copy on write
    loads: list[tuple[int, int]] = field(default_factory=list)  # host slot -> block
    is_done: bool = False  # written by the mover; what a step that failed did not move must not be believed in
    is_landed: bool = False  # written by the host tier

    def __bool__(self) -> bool:
        return bool(self.spills or self.fills or self.offloads or self.copies or self.loads)


@dataclass(slots=True)
class MoveStats:
    """Counters that only grow."""

    offloaded_bytes: int = 0  # device to host
    loaded_bytes: int = 0  # host to device
    copied_bytes: int = 0  # within the device
    seconds: float = 0.0  # that steps waited for all of it
