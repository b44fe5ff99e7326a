"""`headrace keys`: API keys made, listed and revoked. In the database itself: who can reach it needs no key."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.connection import JsonOption, fail, print_json, settings_message
from api.commands.queues import SERVICE
from db.scopes import Scope

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy.orm import Session

    from db.models import ApiKey

PREFIX = "key_"
MAX_NAME = 100  # characters
MOST = 2**31 - 1
SEE = "`headrace keys list` shows the ids."

keys = typer.Typer(name="keys", help="Make, list and revoke API keys.", no_args_is_help=True)

ScopeOption = Annotated[
    list[Scope] | None, typer.Option(help="A part of what it may do; may be repeated. Default: submit and read.")
]
LimitOption = Annotated[
    int | None, typer.Option(min=0, max=MOST, help="0: any number. Default: as the settings say.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(keys, rich_help_panel=SERVICE)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; `headrace keys list` shows it.")],
    tenant: Annotated[str | None, typer.Option(help="Whose jobs it sees; `default` where none is named.")] = None,
    scope: ScopeOption = None,
    requests_per_minute: LimitOption = None,
    tokens_per_minute: LimitOption = None,
    concurrent_jobs: LimitOption = None,
    is_json: JsonOption = False,
) -> None:
    """Make a key and print it, this once: only its digest is kept.

    Example: headrace keys create nightly --scope submit --tokens-per-minute 100000
    """
    from db.key_limits import KeyLimits
    from db.keys import FIRST_TENANT, create_key, key_row

    name, tenant = _word(name, "NAME"), FIRST_TENANT if tenant is None else _word(tenant, "--tenant")
    limits = KeyLimits(requests_per_minute, tokens_per_minute, concurrent_jobs)
    scopes = list(dict.fromkeys(scope or (Scope.SUBMIT, Scope.READ)))
    with _database(is_json=is_json) as session:
        key = create_key(session, tenant=tenant, name=name, scopes=scopes, limits=limits)
        row = _view(key_row(session, key))
    if is_json:
        print_json(row | {"key": key})
    else:
        print(key)
        _tell(f"{row['id']} of tenant {tenant} may {', '.join(scopes)}. It is shown this once.")


@keys.command(name="list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    revoked: Annotated[bool, typer.Option("--revoked", help="Also those that were revoked.")] = False,
    is_json: JsonOption = False,
) -> None:
    """List the keys, the oldest first: what each may do, and its last characters.

    With --json every key is a line.

    Example: headrace keys list --tenant default
    """
    from db.keys import list_keys

    with _database(is_json=is_json) as session:
        rows = [_view(key) for key in list_keys(session, tenant=tenant, with_revoked=revoked)]
    if is_json:
        for row in rows:
            print_json(row)
        return
    from api.commands.render import key_table, stdout

    stdout().print(key_table(rows) if rows else "There is no key.")


@keys.command()
def revoke(
    key_ids: Annotated[list[str], typer.Argument(help="Ids of the keys, as `headrace keys list` shows them.")],
    is_json: JsonOption = False,
) -> None:
    """Revoke keys, for good and within seconds. What was submitted with them goes on.

    Example: headrace keys revoke key_0193e4c2a1b47c3d8e5f60718293a4b5
    """
    from db.ids import public_id
    from db.keys import NoSuchKey, revoke_keys

    ids = [_parsed(text, is_json=is_json) for text in key_ids]
    with _database(is_json=is_json) as session:
        try:
            rows = [_view(key) for key in revoke_keys(session, ids)]
        except NoSuchKey as error:
            missing = public_id(PREFIX, error.key_id)
            fail(f"There is no key with id '{missing}', and none was revoked.", is_json=is_json, hint=SEE)
    for row in rows:
        if is_json:
            print_json(row)
        else:
            _tell_revoked(row)


def _parsed(text: str, *, is_json: bool) -> "UUID":
    from db.ids import parse_id

    key_id = parse_id(PREFIX, text)
    if key_id is None:
        fail(f"'{text[:60]}' is no id of a key, and none was revoked.", is_json=is_json, hint=SEE)
    return key_id


def _word(text: str, option: str) -> str:
    if not 1 <= len(text) <= MAX_NAME or not text.isprintable():
        raise typer.BadParameter(f"give 1 to {MAX_NAME} printable characters", param_hint=option)
    return text


def _tell(remark: str) -> None:
    from api.commands.render import stderr

    stderr().print(remark, style="dim", markup=False)


def _tell_revoked(row: dict[str, Any]) -> None:
    from api.commands.render import stdout
    from db.keys import FIRST_NAME, FIRST_TENANT

    stdout().print(f"{row['id']}  revoked", markup=False)
    if (row["tenant"], row["name"]) == (FIRST_TENANT, FIRST_NAME):
        _tell("A first key: where HEADRACE_API_KEY names it, change that too, or the next start lets it in again.")


def _view(key: "ApiKey") -> dict[str, Any]:
    from db.ids import public_id
    from db.key_limits import NAMES

    return {
        "id": public_id(PREFIX, key.id),
        "name": key.name,
        "tenant": key.tenant,
        "hint": key.hint,
        "scopes": key.scopes,
        **{name: getattr(key, name) for name in NAMES},
        "created_at": key.created_at.isoformat(),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
    }


@contextmanager
def _database(*, is_json: bool) -> Iterator["Session"]:
    """One transaction in the settings' database. What goes wrong ends the command with one clear message."""
    from pydantic import ValidationError
    from sqlalchemy.exc import OperationalError, ProgrammingError
    from sqlalchemy.orm import Session

    from db.session import make_engine
    from db.settings import get_settings

    try:
        engine = make_engine(get_settings(), pool_size=1)
    except ValidationError as error:
        fail(settings_message(error), is_json=is_json)
    try:
        with Session(engine) as session, session.begin():
            yield session
    except OperationalError as error:
        reason = str(error.orig).splitlines()[0]
        hint = "Start it here with `make run` or `headrace up`, or name another with HEADRACE_DATABASE_URL."
        fail(f"PostgreSQL cannot be used: {reason}.", is_json=is_json, hint=hint)
    except ProgrammingError:
        fail("The database has not the tables of this version.", is_json=is_json, hint="Run `headrace migrate`.")
    finally:
        engine.dispose()
