"""A checkpoint's matrices as the CPU kernels take them: packed once, kept on disk, read into huge pages each time.

What `pack_weights` makes is a directory: weights.bin with the matrices, index.json with where they lie in it, and
vectors.safetensors with the norms and biases, so that the checkpoint itself is not opened again. It is held as long as
the model lives; how many of them are kept is up to `packed_cache`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save_file

from kernels import Weight
from kernels.cpu.memory import huge_pages
from kernels.cpu.packed import PackedMatrix
from workers.models.cache import Held, hold
from workers.models.fingerprint import fingerprint
from workers.models.packed_cache import SOURCE, remove_unused
from workers.models.packings import AS_STORED, pack
from workers.models.progress import Progress
from workers.models.safetensors_files import SafetensorsFiles
from workers.models.stored import StoredWeight
from workers.models.weights import Checkpoint, Weights

log = logging.getLogger(__name__)

LAYOUT = 4  # of the directory and its matrices; a new number packs anew
ALIGNMENT = 64  # bytes
READ_BYTES = 64 << 20  # in one piece
GATED = "gated "  # what the keys of such matrices begin with


@dataclass(frozen=True)
class Entry:
    """Where a packed matrix lies in the file."""

    offset: int
    num_bytes: int
    matrix: dict[str, Any]  # the other fields of its PackedMatrix


class PackedWeights(Weights):
    """Weights whose matrices are packed already, in one part or some."""

    def __init__(self, packed: Held, *, dtype: torch.dtype) -> None:
        """`packed` is what `pack_weights` made."""
        super().__init__(SafetensorsFiles([packed.path / "vectors.safetensors"]), dtype=dtype, device="cpu")
        index = json.loads((packed.path / "index.json").read_text())
        self._entries = {key: [Entry(**entry) for entry in entries] for key, entries in index.items()}
        self._names |= {name for key in index for name in key.removeprefix(GATED).split()}
        self._memory = _read_into_huge_pages(packed.path / "weights.bin")

    def matrix(self, *names: str, is_gated: bool = False, is_exact: bool = False) -> Weight:
        return _weight(self._matrices(_key(names, is_gated)))

    def experts(self, num_experts: int, *names: str, is_gated: bool = False) -> Weight:
        return tuple(self._matrices(_key(names, is_gated)))

    def _matrices(self, key: str) -> list[PackedMatrix]:
        return [self._matrix(entry) for entry in self._entries[key]]

    def _matrix(self, entry: Entry) -> PackedMatrix:
        return PackedMatrix(data=self._memory[entry.offset : entry.offset + entry.num_bytes], **entry.matrix)


class Packer(Weights):
    """Weights whose matrices are packed and written, one after the other; a model made of them computes nothing."""

    def __init__(self, checkpoint: Checkpoint, out: BinaryIO, packing: str, *, dtype: torch.dtype) -> None:
        super().__init__(checkpoint, dtype=dtype, device="cpu")
        self._out, self._packing = out, packing
        self._progress = Progress("packing the weights", sum(map(checkpoint.size, checkpoint.names())))
        self.entries: dict[str, list[Entry]] = {}
        self.vectors: dict[str, torch.Tensor] = {}

    def matrix(self, *names: str, is_gated: bool = False, is_exact: bool = False) -> Weight:
        weights = [self._read(name) for name in names]
        packed = pack(weights, AS_STORED if is_exact else self._packing, is_gated=is_gated)
        return _weight(self._write_all(_key(names, is_gated), packed))

    def experts(self, num_experts: int, *names: str, is_gated: bool = False) -> Weight:
        each = self._read_experts(num_experts, names)
        packed = (matrix for weights in each for matrix in pack(weights, self._packing, is_gated=is_gated))
        return tuple(self._write_all(_key(names, is_gated), packed))

    def _read(self, name: str) -> StoredWeight:
        self._progress.add(self._checkpoint.size(name) if name in self._unread else 0)
        return super()._read(name)

    def _write_all(self, key: str, matrices: Iterable[PackedMatrix]) -> list[PackedMatrix]:
        """Write them one after the other; the same without their data."""
        self.entries[key], left = [], []
        for matrix in matrices:
            self.entries[key].append(self._write(matrix))
            left.append(replace(matrix, data=torch.empty(0, dtype=torch.uint8)))
        return left

    def plain(self, *names: str) -> torch.Tensor:
        self._keep(names)
        return super().plain(*names)

    def norm(self, name: str, offset: float = 0.0) -> torch.Tensor:
        self._keep([name])
        return super().norm(name, offset)

    def _keep(self, names: Sequence[str]) -> None:
        self.vectors |= {name: self._read(name).floats() for name in names}

    def _write(self, matrix: PackedMatrix) -> Entry:
        data = matrix.data.contiguous().view(torch.uint8)
        offset = self._out.tell()
        self._out.write(data.numpy().data)
        self._out.write(bytes(-data.nbytes % ALIGNMENT))
        fields = {name: value for name, value in vars(matrix).items() if name != "data"}
        return Entry(offset, data.nbytes, fields)


def pack_weights(
    target: Path,
    checkpoint: Path,
    packing: str,
    open_checkpoint: Callable[[], Checkpoint],
    make: Callable[[Weights], object],
    *,
    dtype: torch.dtype,
    unused: Iterable[str],
) -> Held:
    """The directory `target`, filled once: all that `make` asks the weights for, packed as `packings.pack` says.

    `checkpoint` is where they come from. BadCheckpoint when it does not ask for a weight outside `unused`.
    """

    def build(partial: Path) -> None:
        log.info("packing the weights, once", extra={"path": str(target)})
        partial.mkdir()
        with (partial / "weights.bin").open("wb") as out:
            packer = Packer(open_checkpoint(), out, packing, dtype=dtype)
            make(packer)
        packer.refuse_unread(unused=unused)
        save_file(packer.vectors, partial / "vectors.safetensors")
        index = {key: [asdict(entry) for entry in entries] for key, entries in packer.entries.items()}
        (partial / "index.json").write_text(json.dumps(index))
        (partial / SOURCE).write_text(str(checkpoint.resolve()))

    remove_unused(target, checkpoint)
    return hold(target, build)


def name_of(files: Iterable[Path], packing: str) -> str:
    """What the packed weights of these files are called: a name that changes when the files, or the layout, do."""
    return f"{fingerprint(files)[:16]}-{LAYOUT}-{packing}"


def _read_into_huge_pages(path: Path) -> torch.Tensor:
    """The file's bytes, for which the processor looks less than for those of a mapped file."""
    num_bytes = path.stat().st_size
    memory = huge_pages(num_bytes)
    view, done = memory.numpy().data, 0
    with path.open("rb", buffering=0) as file:
        while done < num_bytes:
            done += file.readinto(view[done : done + READ_BYTES]) or 0
            log.info("reading the weights", extra={"percent": 100 * done // num_bytes})
    return memory


def _weight(parts: Sequence[PackedMatrix]) -> Weight:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _key(names: Sequence[str], is_gated: bool) -> str:
    return (GATED if is_gated else "") + " ".join(names)
