"""Where a client finds its server and its key, and what it knows of what they speak about."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import BaseModel

from api import replay_schemas, schemas
from api.batches import schemas as batch_schemas
from api.client import types as client_types
from api.client.server import Server, find_server
from api.client.types import JobFields, ReplayFilter
from api.up.screen import Welcome, submit_line
from db.settings import get_settings


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without settings."""
    for name in ("URL", "API_KEY", "HOST", "PORT", "DATA_DIR"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


def test_without_anything_it_is_this_machine_and_no_key() -> None:
    assert find_server(None, None) == Server("http://127.0.0.1:8000", None)


def test_the_data_directory_has_the_key_of_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "api-key").write_text("hr_here\n")
    monkeypatch.setenv("HEADRACE_PORT", "8123")
    assert find_server(None, None) == Server("http://127.0.0.1:8123", "hr_here")


def test_variables_go_before_that_and_arguments_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "mill.example:80/")
    monkeypatch.setenv("HEADRACE_API_KEY", "hr_variable")
    assert find_server(None, None) == Server("http://mill.example:80", "hr_variable")
    assert find_server("https://other.example", "hr_given") == Server("https://other.example", "hr_given")


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://mill.example", None),
        ("mill.example:8000", None),
        ("http://127.0.0.1.mill.example", None),
        ("http://localhost@mill.example", None),
        ("localhost:8000", "hr_here"),
        ("http://[::1]:8000", "hr_here"),
    ],
)
def test_the_key_in_the_data_directory_goes_to_no_server_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, key: str | None
) -> None:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace" / "api-key").write_text("hr_here\n")
    assert find_server(url, None).key == key
    monkeypatch.setenv("HEADRACE_URL", url)
    assert find_server(None, None).key == key


def test_the_line_that_the_first_screen_shows_finds_the_key_wherever_this_machines_server_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "api-key").write_text("hr_here\n")
    for url in ("http://127.0.0.1:8000", "http://192.0.2.7:8000", "http://[2001:db8::7]:8000"):
        line = submit_line(Welcome("1", url, "", tmp_path / "data", "", "", "m", 64))
        with monkeypatch.context() as patch:
            for name, given, value in (word.partition("=") for word in shlex.split(line)):
                if given and name.startswith("HEADRACE_"):
                    patch.setenv(name, value)
            get_settings.cache_clear()
            assert find_server(None, None) == Server(url, "hr_here")


def test_a_key_is_not_shown_where_its_server_is() -> None:
    assert "hr_secret" not in repr(Server("http://127.0.0.1:8000", "hr_secret"))


@pytest.mark.parametrize(
    ("known", "spoken"),
    [
        (client_types.Job, schemas.JobView),
        (client_types.Output, schemas.JobOutput),
        (client_types.Choice, schemas.JobChoice),
        (client_types.TokenLogprobs, schemas.TokenLogprobs),
        (client_types.Usage, schemas.Usage),
        (client_types.Estimate, schemas.Estimate),
        (client_types.JobError, schemas.JobError),
        (client_types.Crash, schemas.Crash),
        (client_types.Replay, replay_schemas.Replay),
        (client_types.BatchState, batch_schemas.BatchView),
        (client_types.BatchError, batch_schemas.BatchError),
        (client_types.RequestCounts, batch_schemas.RequestCounts),
    ],
)
def test_the_client_knows_every_field_that_the_api_answers(known: type, spoken: type[BaseModel]) -> None:
    assert set(get_type_hints(known)) == set(spoken.model_fields)


def test_the_client_knows_every_field_that_the_api_takes() -> None:
    assert set(get_type_hints(JobFields)) == set(schemas.JobCreate.model_fields) - {"prompt", "messages"}
    assert set(get_type_hints(ReplayFilter)) == set(replay_schemas.ReplayMany.model_fields) - {"after", "limit"}
