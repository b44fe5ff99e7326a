"""`headrace keys`: made, shown once, listed, revoked; in the database itself."""

import json
import re
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from api.cli import app
from db.settings import Settings, get_settings
from tests.api.serving import make_client, serve
from tests.servers import environment


@pytest.fixture
def run(settings: Settings, engine: Engine) -> Any:
    """Run `headrace keys ...` on the test's database."""

    def run(*arguments: str, **variables: str) -> Result:
        get_settings.cache_clear()
        try:
            return CliRunner().invoke(app, ["keys", *arguments], env=environment(settings) | variables)
        finally:
            get_settings.cache_clear()

    return run


async def test_a_key_is_printed_alone_once_and_opens_until_it_is_revoked(run, settings: Settings) -> None:
    made = run("create", "nightly")
    key = made.stdout.strip()
    assert re.fullmatch(r"hr_[\w-]{43}", key), made.stderr
    assert "of tenant default may submit, read. It is shown this once." in made.stderr
    listed = run("list")
    (key_id,) = re.findall(r"key_[0-9a-f]{32}", listed.stdout)
    assert key not in listed.stdout and key[-4:] in listed.stdout and "nightly" in listed.stdout
    async with serve(settings) as url, make_client(url, key) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
    assert run("revoke", key_id).stdout == f"{key_id}  revoked\n"
    async with serve(settings) as url, make_client(url, key) as client:
        assert (await client.get("/v1/jobs")).status_code == 401
    assert run("list").stdout == "There is no key.\n"
    assert key_id in run("list", "--revoked").stdout


def test_a_key_has_the_tenant_scopes_and_limits_that_were_asked_for(run) -> None:
    options = ["--tenant", "acme", "--scope", "read", "--scope", "admin", "--scope", "read"]
    limits = ["--requests-per-minute", "60", "--tokens-per-minute", "0", "--concurrent-jobs", "4"]
    made = json.loads(run("create", "x", *options, *limits, "--json").stdout)
    (listed,) = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    assert made == listed | {"key": made["key"]}
    assert (made["tenant"], made["scopes"], made["revoked_at"]) == ("acme", ["read", "admin"], None)
    given = (made["requests_per_minute"], made["tokens_per_minute"], made["concurrent_jobs"])
    assert given == (60, 0, 4)
    assert "60 requests/min, any number of tokens/min, 4 jobs" in run("list", "--tenant", "acme").stdout
    assert run("list", "--tenant", "other", "--json").stdout == ""


def test_all_are_revoked_or_none(run) -> None:
    made = json.loads(run("create", "x", "--json").stdout)
    for wrong in ("key_" + "0" * 32, made["key"]):
        refused = run("revoke", made["id"], wrong)
        assert refused.exit_code == 1 and "none was revoked" in refused.stderr
    assert json.loads(run("list", "--json").stdout)["revoked_at"] is None
    first, again = (json.loads(run("revoke", made["id"], "--json").stdout) for _ in range(2))
    assert first == again and first["revoked_at"], "a second time changes nothing"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "x", "--scope", "write"], "write"),
        (["create", ""], "1 to 100 printable characters"),
        (["create", "x", "--tenant", "a\tb"], "1 to 100 printable characters"),
        (["create", "x", "--concurrent-jobs", "-1"], "--concurrent-jobs"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(run, arguments: list[str], says: str) -> None:
    refused = run(*arguments, COLUMNS="200")
    assert refused.exit_code == 2 and says in refused.stderr
    assert run("list").stdout == "There is no key.\n"


def test_a_database_that_is_away_is_told_in_words(run) -> None:
    refused = run("list", HEADRACE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert refused.exit_code == 1 and "PostgreSQL cannot be used" in refused.stderr
    told = run("list", "--json", HEADRACE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert "PostgreSQL" in json.loads(told.stderr)["error"]["message"]


@pytest.mark.parametrize("command", ["create", "list", "revoke"])
def test_every_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["keys", command, "--help"], env={"COLUMNS": "120"})
    assert f"Example: headrace keys {command}" in result.stdout and "--json" in result.stdout
