"""The files that put Headrace elsewhere: as far as they can be checked without a container engine."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import Any

import yaml

from tests.test_imports import OURS, ROOT, imports, modules

OPTIONAL = {"flash_attn", "triton"}  # extra `gpu`, not installed everywhere
BROUGHT_ALONG = {"billiard", "pydantic-core", "starlette"}  # parts of Celery, pydantic and FastAPI
COMMANDS = {"api", "worker", "tasks", "batches", "beat", "flower", "migrate"}


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def our_services() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def test_compose_file_follows_the_compose_specification() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*checker, ROOT / "docker-compose.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_process_of_production_is_in_the_compose_file() -> None:
    assert {service["command"][0] for service in our_services().values()} == COMMANDS


def test_every_service_that_stays_up_is_checked_and_restarted() -> None:
    for name, service in compose()["services"].items():
        assert service["restart"] == ("on-failure" if name == "migrate" else "unless-stopped")
        assert "healthcheck" in service or name == "migrate"


def test_redis_of_production_forgets_nothing() -> None:
    command = " ".join(compose()["services"]["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_dockerfile_has_the_targets_and_copies_the_packages() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = {service["build"]["target"] for service in our_services().values()}
    assert targets == {"service", "engine"}
    assert targets <= set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    for package in ("api", "db", "kernels", "migrations", "workers"):
        assert f"COPY {package} {package}" in dockerfile


def test_services_run_without_torch() -> None:
    # None in sys.modules makes an import fail, as in the service image.
    program = (
        "import sys; sys.modules.update(torch=None, transformers=None, gguf=None, safetensors=None, numpy=None)\n"
        "import api.app, api.batches.process, api.cli, api.up.run, db.broker, workers.tasks"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_help_comes_without_the_weight_of_the_services() -> None:
    program = (
        "import sys, api.cli\n"
        "from typer.main import get_command\n"
        "heavy = {'celery', 'sqlalchemy', 'fastapi', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        f"missing = {COMMANDS!r} - set(get_command(api.cli.app).commands)\n"
        "assert not missing, missing"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_everything_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["engine"], *extras["demo"], *extras["gpu"]]
    declared = {canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}
    distributions = packages_distributions()
    foreign = {name.split(".")[0] for module in modules() for name in imports(module)} - OURS - sys.stdlib_module_names
    for package in foreign - OPTIONAL:
        assert {canonical(name) for name in distributions[package]} & (declared | BROUGHT_ALONG), package


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
