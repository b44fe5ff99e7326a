"""One line per event on stderr: time, level, logger, message, then the fields that were passed as `extra`."""

import logging
from typing import Any

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data"}


class FieldFormatter(logging.Formatter):
    """Appends a record's own fields as `key=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        fields = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in STANDARD)
        return f"{line} [{fields}]" if fields else line


def log_to_stderr(level: str) -> None:
    """Set up a process that is not Celery's: everything from `level` up, in this form."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def show_fields(logger: logging.Logger, **_: Any) -> None:
    """Receiver of Celery's `after_setup_logger`: use the formatter on what Celery has set up."""
    for handler in logger.handlers:
        handler.setFormatter(FieldFormatter())
