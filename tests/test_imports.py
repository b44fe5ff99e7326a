"""The direction of imports: who may know whom. The layers of the tree, as the sources themselves tell them."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"api", "db", "kernels", "migrations", "tests", "workers"}

# The most specific prefix rules: what of ours its modules may import.
MAY_IMPORT_OF_OURS = {
    "api": {"api", "db", "workers.text"},
    "db": {"db", "migrations"},
    "kernels": {"kernels"},
    "migrations": {"db", "migrations"},
    "workers": {"db", "kernels", "workers"},
    "workers.engine": {"kernels", "workers.engine", "workers.models"},
    "workers.models": {"kernels", "workers.models", "workers.text"},
    "workers.text": {"workers.text"},
}
MAY_NOT_IMPORT = {
    "api": {"torch", "transformers", "gguf", "safetensors", "numpy"},
    "db": {"torch", "transformers", "fastapi", "numpy"},
    "workers": {"transformers", "fastapi"},
    "workers.engine": {"celery", "kombu", "redis", "sqlalchemy", "transformers"},
    "workers.models": {"celery", "kombu", "redis", "sqlalchemy", "transformers"},
    "workers.text": {"torch", "transformers", "gguf", "celery", "redis", "sqlalchemy"},
}
KERNELS_MAY_IMPORT = {"torch", "triton", "flash_attn", "numpy"}


def modules() -> list[str]:
    """Every module of the product."""
    files = [file for package in sorted(OURS - {"tests"}) for file in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def imports(module: str) -> Iterator[str]:
    """Dotted names that the module imports, anywhere in it; for `from db import jobs`, `db.jobs`."""
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rule(rules: dict[str, set[str]], module: str) -> set[str]:
    """The rule of the longest prefix of `module`."""
    prefixes = [prefix for prefix in rules if is_within(module, {prefix})]
    return rules[max(prefixes, key=len)] if prefixes else set()


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("module", modules())
def test_module_imports_only_what_lies_below_it(module: str) -> None:
    allowed = rule(MAY_IMPORT_OF_OURS, module)
    ours = {name for name in imports(module) if name.split(".")[0] in OURS}
    assert {name for name in ours if not is_within(name, allowed)} == set()


@pytest.mark.parametrize("module", modules())
def test_module_keeps_away_from_foreign_layers(module: str) -> None:
    forbidden = rule(MAY_NOT_IMPORT, module)
    assert {name for name in imports(module) if is_within(name, forbidden)} == set()


def test_kernels_import_tensors_and_nothing_else() -> None:
    foreign = {
        name.split(".")[0]
        for module in modules()
        if is_within(module, {"kernels"})
        for name in imports(module)
        if name.split(".")[0] not in OURS | sys.stdlib_module_names
    }
    assert foreign <= KERNELS_MAY_IMPORT
