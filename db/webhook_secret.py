"""Secrets that sign webhooks, as Standard Webhooks spells them: `whsec_` and base64."""

import secrets
from base64 import b64encode

PREFIX = "whsec_"
SECRET_BYTES = 24
HINT_CHARS = 4


def new_secret() -> str:
    """A secret drawn at random."""
    return PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def hint_of(secret: str) -> str:
    """What may be shown of a secret: enough to tell it from another one."""
    return f"{PREFIX}...{secret[-HINT_CHARS:]}"
