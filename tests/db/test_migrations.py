"""The schema: what the migrations make is what the models say, and it can be taken back."""

from sqlalchemy import Engine, inspect, text

from db import migrate
from db.settings import Settings
from tests.servers import Servers


def test_migrated_database_has_no_drift_from_the_models(postgres: Settings) -> None:
    migrate.check(postgres)


def test_downgrade_to_base_leaves_nothing_and_upgrade_brings_everything_back(
    servers: Servers, session_engine: Engine
) -> None:
    name = "downgraded"
    with session_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = session_engine.url.set(database=name)
    other = servers.settings.model_copy(update={"database_url": url.render_as_string(hide_password=False)})
    migrate.upgrade(other)
    migrate.downgrade(other, "base")
    from db.session import make_engine

    engine = make_engine(other)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    migrate.upgrade(other)
    migrate.check(other)
    engine.dispose()
