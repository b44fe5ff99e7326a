"""One instance with the real model, for all tests that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instance import Instance, running


@pytest.fixture(scope="session")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """The demo model, served from below a directory that other users cannot enter, whose name is no plain word.

    In fp32, so that a text is a function of its prompt on any machine.
    """
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    directory = closed / "two words; 50 % #1"
    directory.mkdir()
    with running(directory, HEADRACE_WEBHOOK_ALLOW_PRIVATE="1", HEADRACE_DTYPE="float32") as instance:
        instance.wait_until_ready()
        yield instance


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint that loads at once."""
    from tests.checkpoints import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
