"""A checkpoint's matrices as the CPU kernels take them: packed once, kept on disk, read into huge pages each time."""

import hashlib
import json
import logging
import mmap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from kernels.cpu.pack_int8 import pack_int8
from kernels.cpu.packed import PackedMatrix
from workers.models.cache import build_once
from workers.models.weights import Weights

log = logging.getLogger(__name__)

LAYOUT = 1  # of the packed matrices; a new number packs anew
ALIGNMENT = 64  # bytes
HUGE_PAGE = 2 << 20
READ_BYTES = 64 << 20  # in one piece


class Pack(Protocol):
    """Packs a weight [n, k], which may be one of gates and ups."""

    def __call__(self, weight: torch.Tensor, *, is_gated: bool) -> PackedMatrix: ...


@dataclass(frozen=True)
class Entry:
    """Where a packed matrix lies in the file."""

    offset: int
    num_bytes: int
    matrix: dict[str, Any]  # the other fields of its PackedMatrix


class PackedWeights(Weights):
    """Weights whose matrices are packed already; norms and biases are read from the checkpoint."""

    def __init__(self, files: Sequence[Path], packed: Path, *, dtype: torch.dtype) -> None:
        """`packed` is what `pack_weights` made of the same checkpoint."""
        super().__init__(files, dtype=dtype, device="cpu")
        index = json.loads((packed / "index.json").read_text())
        self._entries = {key: Entry(**entry) for key, entry in index.items()}
        self._memory = _read_into_huge_pages(packed / "weights.bin")

    def matrix(self, *names: str, is_gated: bool = False) -> PackedMatrix:
        self._used.update(names, (f"{name}_scale" for name in names))
        entry = self._entries[_key(names, is_gated)]
        data = self._memory[entry.offset : entry.offset + entry.num_bytes]
        return PackedMatrix(data=data, **entry.matrix)


class Packer(Weights):
    """Weights whose matrices are packed and written, one after the other; a model made of them computes nothing."""

    def __init__(self, files: Sequence[Path], out: BinaryIO, pack: Pack, *, dtype: torch.dtype) -> None:
        super().__init__(files, dtype=dtype, device="cpu")
        self._out, self._pack = out, pack
        self.entries: dict[str, Entry] = {}

    def matrix(self, *names: str, is_gated: bool = False) -> PackedMatrix:
        quantized = self.int8(*names)
        if quantized is None:
            packed = self._pack(self.joined(*names), is_gated=is_gated)
        else:
            packed = pack_int8(*quantized, is_gated=is_gated)
        data = packed.data.contiguous().view(torch.uint8)
        offset = self._out.tell()
        self._out.write(data.numpy().data)
        self._out.write(bytes(-data.nbytes % ALIGNMENT))
        fields = {name: value for name, value in asdict(packed).items() if name != "data"}
        self.entries[_key(names, is_gated)] = Entry(offset, data.nbytes, fields)
        return PackedMatrix(data=torch.empty(0, dtype=torch.uint8), **fields)


def pack_weights(
    files: Sequence[Path], target: Path, pack: Pack, make: Callable[[Weights], object], *, dtype: torch.dtype
) -> Path:
    """The directory `target`, filled once: every matrix that `make` asks the weights for."""

    def build(partial: Path) -> None:
        log.info("packing the weights, once", extra={"path": str(target)})
        partial.mkdir()
        with (partial / "weights.bin").open("wb") as out:
            packer = Packer(files, out, pack, dtype=dtype)
            make(packer)
        index = {key: asdict(entry) for key, entry in packer.entries.items()}
        (partial / "index.json").write_text(json.dumps(index))

    return build_once(target, build)


def name_of(files: Sequence[Path], form: str) -> str:
    """What the packed weights of these files are called: a name that changes when the files, or the layout, do."""
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    return f"{hashlib.sha256(repr((LAYOUT, stats)).encode()).hexdigest()[:16]}-{form}"


def _read_into_huge_pages(path: Path) -> torch.Tensor:
    """The file's bytes in anonymous memory, which the kernel backs by huge pages: fewer misses than a mapped file."""
    num_bytes = path.stat().st_size
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    view = memoryview(memory)[start : start + num_bytes]
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < num_bytes:
            done += file.readinto(view[done : done + READ_BYTES]) or 0
            log.info("reading the weights", extra={"percent": 100 * done // num_bytes})
    return whole[start : start + num_bytes]


def _key(names: Sequence[str], is_gated: bool) -> str:
    return ("gated " if is_gated else "") + " ".join(names)
