"""The README says what the code does."""

import re
from pathlib import Path

from db.settings import Settings

README = (Path(__file__).parent.parent / "README.md").read_text()
BEGIN, END = "<!-- settings -->", "<!-- /settings -->"


def settings_table() -> str:
    """The settings as the README shows them; paste this between its marks when they change."""
    rows = ["| variable | default | what |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `HEADRACE_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    shown = README.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == settings_table()


def test_every_file_that_the_readme_names_exists() -> None:
    root = Path(__file__).parent.parent
    named = set(re.findall(r"`((?:api|db|workers|kernels|tests)/[\w/.]*)`", README))
    assert named
    assert [name for name in sorted(named) if not (root / name).exists()] == []
