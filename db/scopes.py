"""What an API key may do."""

from enum import StrEnum


class Scope(StrEnum):
    """A part of the API; `api.scopes` says which request needs which."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"
    ALL = "*"
