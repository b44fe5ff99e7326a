"""The file format of one block on disk. A file that is torn, altered or somebody else's is told from a good one."""

import hashlib
import os
import struct
from pathlib import Path

MAGIC = b"HRKVBLK1"
HEADER = struct.Struct("<8s32s32sQ")  # magic, SHA-256 of the layout, key, bytes of payload
CHECKSUM_BYTES = 32  # SHA-256 over header and payload, behind the header
NUM_HEADER_BYTES = HEADER.size + CHECKSUM_BYTES
SUFFIX = ".kv"
UNFINISHED_SUFFIX = ".unfinished"


class BadBlockFile(Exception):
    """The file is not the whole, unaltered block of its name."""


def block_path(directory: Path, key: bytes) -> Path:
    return directory / f"{key.hex()}{SUFFIX}"


def write_block(directory: Path, key: bytes, payload: bytes, *, layout: bytes) -> None:
    """Write the block of `key`, whole or not at all; readable by this user alone, as it tells what was prompted.

    Not synced: what a power cut tears is found by its checksum. Raises OSError.
    """
    header = _header(key, len(payload), layout)
    unfinished = directory / f"{key.hex()}.{os.getpid()}{UNFINISHED_SUFFIX}"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(header)
            file.write(_checksum(header, payload))
            file.write(payload)
        unfinished.replace(block_path(directory, key))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_block(directory: Path, key: bytes, *, layout: bytes) -> bytearray:
    """The payload of the block of `key`. Raises BadBlockFile, or OSError if it is not there or cannot be read."""
    with open(block_path(directory, key), "rb") as file:
        header, checksum = file.read(HEADER.size), file.read(CHECKSUM_BYTES)
        payload = bytearray(max(0, os.fstat(file.fileno()).st_size - NUM_HEADER_BYTES))
        file.readinto(payload)
    if header != _header(key, len(payload), layout) or checksum != _checksum(header, payload):
        raise BadBlockFile(key.hex())
    return payload


def key_of(path: Path, *, layout: bytes) -> bytes | None:
    """The key of a block file of this layout, None for any other file.

    Raises BadBlockFile if the file is ours, but not whole; OSError if it cannot be read. The payload is not read.
    """
    try:
        key = bytes.fromhex(path.name.removesuffix(SUFFIX))
    except ValueError:
        return None
    with open(path, "rb") as file:
        header = file.read(NUM_HEADER_BYTES)
        num_payload_bytes = os.fstat(file.fileno()).st_size - NUM_HEADER_BYTES
    if header[: HEADER.size - 8] != _header(key, 0, layout)[:-8]:
        return None
    if num_payload_bytes < 0 or header[: HEADER.size] != _header(key, num_payload_bytes, layout):
        raise BadBlockFile(path.name)
    return key


def _header(key: bytes, num_payload_bytes: int, layout: bytes) -> bytes:
    return HEADER.pack(MAGIC, hashlib.sha256(layout).digest(), key, num_payload_bytes)


def _checksum(header: bytes, payload: bytes | bytearray) -> bytes:
    checksum = hashlib.sha256(header)
    checksum.update(payload)
    return checksum.digest()
