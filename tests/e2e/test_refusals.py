"""What `headrace up` cannot run, it says in one line, with exit code 1."""

import socket
from pathlib import Path

import pytest

from api.up import checks
from db.settings import Settings
from tests.e2e.instance import STOP_SECONDS, refusal, running


def test_a_taken_port_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} (address already in use): set HEADRACE_PORT" in refusal(tmp_path, HEADRACE_PORT=port)
        assert "set HEADRACE_FLOWER_PORT" in refusal(tmp_path, HEADRACE_FLOWER_PORT=port)


def test_one_port_for_both_is_refused(tmp_path: Path) -> None:
    assert "are both 8123" in refusal(tmp_path, HEADRACE_PORT="8123", HEADRACE_FLOWER_PORT="8123")


def test_a_model_path_that_is_wrong_is_refused(tmp_path: Path) -> None:
    assert "/no/such does not exist" in refusal(tmp_path, HEADRACE_MODEL="/no/such")
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json" in refusal(tmp_path, HEADRACE_MODEL="empty")
    (tmp_path / "model.gguf").write_text("not GGUF")
    assert "model.gguf is not a GGUF file" in refusal(tmp_path, HEADRACE_MODEL="model.gguf")
    assert "empty/model.gguf does not exist" in refusal(tmp_path, HEADRACE_MODEL="empty/model.gguf")


def test_a_url_of_files_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    assert "HEADRACE_FILES_URL: Protocol not known: nonsense" in refusal(tmp_path, HEADRACE_FILES_URL="nonsense://x")


def test_a_full_disk_is_refused_with_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 2**62)
    with pytest.raises(
        checks.Refused, match=r"only [\d,]+ MB are free on the disk of .*: free some, or set HEADRACE_DATA"
    ):
        checks.check_space(Settings(data_dir=tmp_path))


def test_a_data_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    cluster = tmp_path / "data" / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("12\n")
    assert "PostgreSQL 12; this one needs PostgreSQL 18" in refusal(tmp_path)
    (tmp_path / "data" / "format").write_text("99\n")
    assert "format 99; this one needs format 1" in refusal(tmp_path)


def test_a_setting_that_is_no_setting_is_refused_by_name(tmp_path: Path) -> None:
    assert "HEADRACE_PORT: Input should be less than or equal to 65535" in refusal(tmp_path, HEADRACE_PORT="80000")
    (tmp_path / ".env").write_text("HEADRACE_DRAIN_SECONDS=soon\n")
    assert "HEADRACE_DRAIN_SECONDS: Input should be a valid number" in refusal(tmp_path)


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert "cannot use data directory" in refusal(tmp_path)


def test_a_model_that_does_not_load_is_refused_with_the_workers_reason(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"architectures": ["Odd"]}')
    with running(tmp_path, HEADRACE_MODEL=str(tmp_path / "odd")) as instance:
        assert instance.process.wait(STOP_SECONDS) == 1
        assert instance.screen.splitlines()[-1].startswith(
            "headrace: worker cannot start: the model could not be loaded"
        )
        assert instance.pids() == {}
