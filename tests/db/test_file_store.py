"""Where files are kept: a directory, and what is not one. Both do the same."""

import io
import os
from pathlib import Path

import pytest

from db.file_store import CHUNK_BYTES, FileStore
from db.ids import new_id


@pytest.fixture(params=["directory", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    return FileStore(str(tmp_path / "made when needed") if request.param == "directory" else f"memory://{tmp_path}")


def test_what_is_copied_in_can_be_read_in_parts_and_deleted(store: FileStore) -> None:
    url = store.url_of(new_id())
    content = os.urandom(CHUNK_BYTES + 3)
    assert store.copy(io.BytesIO(content), url) == len(content)
    with store.open(url) as file:
        assert file.read(5) == content[:5]
    assert store.ranges(url, [(2, 3), (0, 1), (CHUNK_BYTES, 3)]) == [content[2:5], content[:1], content[-3:]]
    store.delete(url)
    store.delete(url)
    with pytest.raises(FileNotFoundError):
        store.open(url)


def test_a_file_that_is_written_again_is_the_later_one(store: FileStore) -> None:
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"a longer one"), url)
    store.copy(io.BytesIO(b"short"), url)
    with store.open(url) as file:
        assert file.read() == b"short"


def test_a_source_that_breaks_off_leaves_nothing(store: FileStore) -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError("the client left")
            return super().read(4)

    url = store.url_of(new_id())
    with pytest.raises(OSError, match="the client left"):
        store.copy(Breaking(b"abcdefgh"), url)
    with pytest.raises(FileNotFoundError):
        store.open(url)
    store.delete(url)


def test_nobody_sees_a_file_in_a_directory_before_it_is_whole(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"the one before"), url)
    file = store.create(url)
    file.write(b"half of the ne")
    with store.open(url) as before:
        assert before.read() == b"the one before"
    store.delete(url)
    assert list(tmp_path.iterdir()) == [], "what a killed writer left goes too"
