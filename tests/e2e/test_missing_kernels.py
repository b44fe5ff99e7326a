"""`headrace up` where the package was installed without a C++ compiler."""

import os
import signal
from pathlib import Path

from tests.e2e.instance import running, served_model

# Python runs a module of this name first. Each process finds everything but the library.
SITECUSTOMIZE = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "kernels.cpu._kernels" else find_spec(name, *rest)
"""


def test_without_the_kernels_it_serves_and_says_what_to_install(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])
    with running(tmp_path, HEADRACE_MODEL=str(tiny_model), PYTHONPATH=path) as instance:
        instance.wait_until_ready()
        with instance.client() as client:
            job = client.post(
                "/v1/jobs", json={"model": served_model(client), "prompt": "Water", "max_tokens": 4}
            ).json()
            ended = client.get(job["links"]["self"], headers={"Prefer": "wait=60"}).json()
        assert ended["status"] == "succeeded"
        warning = instance.line("The engine worker warns: the C++ kernels were not built")
        assert "`pip install ziglang`" in warning
        instance.assert_stops(signal.SIGTERM)
