"""Where files are kept: a directory, or an object store. Both do the same."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from db.file_store import BLOCK_BYTES, CHUNK_BYTES, FileStore
from db.ids import new_id
from tests.db.object_store import BUCKET, NoAnswer, ObjectStore


@pytest.fixture(params=["directory", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    is_directory = request.param == "directory"
    return FileStore(str(tmp_path / "made when needed") if is_directory else f"objects://{BUCKET}/{tmp_path.name}/")


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


def test_parts_of_a_file_that_is_not_there_are_an_error(store: FileStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.ranges(store.url_of(new_id()), [(0, 1), (1, 1)])


def test_a_file_that_is_written_again_is_the_later_one(store: FileStore) -> None:
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"a longer one"), url)
    store.copy(io.BytesIO(b"short"), url)
    with store.open(url) as file:
        assert file.read() == b"short"


class Breaking(io.BytesIO):
    """A source that ends before its time."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError("the client left")
        return super().read(4)


@pytest.mark.parametrize("num_bytes", [4, 3 * BLOCK_BYTES])
def test_a_file_that_breaks_off_leaves_nothing_and_what_was_there_before(store: FileStore, num_bytes: int) -> None:
    old, new = store.url_of(new_id()), store.url_of(new_id())
    store.copy(io.BytesIO(b"the one before"), old)
    for url in (old, new):
        with pytest.raises(OSError, match="the client left"):
            store.copy(Breaking(b"abcdefgh"), url)
        file = store.create(url)
        file.write(bytes(num_bytes))
        file.discard()
        del file
    with store.open(old) as before:
        assert before.read() == b"the one before"
    with pytest.raises(FileNotFoundError):
        store.open(new)
    store.delete(new)


def test_nobody_sees_a_file_before_it_is_whole(store: FileStore) -> None:
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"the one before"), url)
    file = store.create(url)
    file.write(bytes(2 * BLOCK_BYTES))
    with store.open(url) as before:
        assert before.read() == b"the one before"
    file.commit()
    assert store.ranges(url, [(2 * BLOCK_BYTES - 1, 1)]) == [bytes(1)]


def test_a_file_goes_with_what_a_killed_writer_left_of_it(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"whole"), url)
    store.create(url).write(b"half")
    store.delete(url)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_answer_is_an_error_of_the_system_whatever_its_package_calls_it() -> None:
    store = FileStore("objects://away")
    url = store.url_of(new_id())
    acts: list[Callable[[], object]] = [
        lambda: store.copy(io.BytesIO(b"a"), url),
        lambda: store.open(url),
        lambda: store.ranges(url, [(0, 1)]),
        lambda: store.delete(url),
    ]
    for act in acts:
        with pytest.raises(OSError, match="NoAnswer: nobody there") as raised:
            act()
        assert isinstance(raised.value.__cause__, NoAnswer)


def test_a_store_that_goes_away_while_a_file_is_read_is_such_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(f"objects://{BUCKET}/read")
    url = store.url_of(new_id())
    store.copy(io.BytesIO(b"abc"), url)
    with store.open(url) as file:
        monkeypatch.setattr(ObjectStore, "is_away", True)
        with pytest.raises(OSError, match="NoAnswer: nobody there"):
            file.read(1)


def test_a_bucket_that_nobody_made_takes_no_file_which_is_not_one_that_is_missing() -> None:
    store = FileStore("objects://nobody-made-it")
    with pytest.raises(OSError, match="nobody-made-it") as raised:
        store.copy(io.BytesIO(b"a"), store.url_of(new_id()))
    assert not isinstance(raised.value, FileNotFoundError)


def test_a_root_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        FileStore("nonsense://bucket")
