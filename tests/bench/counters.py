"""How often each store was asked: differences of what PostgreSQL and Valkey count themselves."""

from collections import Counter
from dataclasses import dataclass

import redis
from sqlalchemy import Engine, text

POSTGRES_OPTIONS = ("shared_preload_libraries=pg_stat_statements",)
STATEMENTS = text("SELECT query, sum(calls) AS calls FROM pg_stat_statements GROUP BY query")
# What lua/stream.lua and lua/pop.lua run themselves; PUBLISH comes from scripts and from clients.
BY_SCRIPTS = {"xadd", "xrange", "xrevrange", "expire", "llen", "lindex", "rpop"}


@dataclass(frozen=True)
class Counts:
    """Calls since the start, by statement and by command."""

    statements: Counter[str]
    commands: Counter[str]

    def since(self, earlier: "Counts") -> "Counts":
        return Counts(self.statements - earlier.statements, self.commands - earlier.commands)


def prepare(engine: Engine) -> None:
    """Let PostgreSQL show its counts."""
    with engine.begin() as connection:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_stat_statements"))


def read(engine: Engine, client: redis.Redis) -> Counts:
    """The counts now. BEGIN, COMMIT and ROLLBACK are statements; commands that a script runs are commands."""
    with engine.connect() as connection:
        statements = {row.query: int(row.calls) for row in connection.execute(STATEMENTS)}
    commands = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()}
    return Counts(Counter(statements), Counter(commands))
