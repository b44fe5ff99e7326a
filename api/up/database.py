"""What `headrace up` asks of the database: its tables, its first key, and what the engine worker says of itself."""

from datetime import datetime
from typing import Self

from alembic.util.exc import CommandError
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from api.up.checks import Refused
from db import migrate
from db.keys import FirstKey, KeyTooShort, ensure_first_key
from db.models import NOW, Worker
from db.session import make_engine
from db.settings import Settings


class Database:
    """A few connections, closed on leaving."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = make_engine(settings, pool_size=1)
        self.prepared_at: datetime | None = None  # by the Postgres clock; written by prepare()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.dispose()

    def prepare(self) -> FirstKey:
        """Bring the tables to this version and make the first key; raises Refused when it cannot."""
        try:
            migrate.upgrade(self.settings)
        except CommandError as error:
            raise Refused(f"the database was made by another version of Headrace ({error})") from error
        with Session(self.engine) as session:
            try:
                key = ensure_first_key(session, self.settings)
            except KeyTooShort as error:
                raise Refused(str(error)) from error
            self.prepared_at = session.scalar(select(NOW))
            session.commit()
        return key

    def worker(self, pid: int | None) -> Worker | None:
        """What the engine worker with this process id registered; None before that, and while Postgres is away."""
        mine = (Worker.pid == pid, Worker.started_at >= self.prepared_at)  # an older row may have had the same id
        try:
            with Session(self.engine, expire_on_commit=False) as session:
                return session.scalar(select(Worker).where(*mine).order_by(Worker.started_at.desc()).limit(1))
        except OperationalError:
            return None
