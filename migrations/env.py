"""Runs migrations, under a lock, against the database of the settings or of the caller (`db/migrate.py`)."""

import re

from alembic import context
from sqlalchemy import create_engine, pool, text

from db.models import Base
from db.partitions import NAME_PATTERN
from db.settings import get_settings

LOCK = text("SELECT pg_advisory_lock(hashtext('headrace migrations'))")


def is_ours(name: str | None, kind: str, parents: object) -> bool:
    """Partitions come and go with the days; the models know only their parents."""
    return kind != "table" or name is None or re.match(NAME_PATTERN, name) is None


def run() -> None:
    """Apply the migrations in one transaction; a second process waits here, and then finds nothing to do."""
    url = context.config.attributes.get("database_url") or get_settings().resolved_database_url
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.execute(LOCK)
        connection.commit()  # the lock is the session's and stays
        context.configure(connection=connection, target_metadata=Base.metadata, include_name=is_ours)
        with context.begin_transaction():
            context.run_migrations()


run()
