"""A submit as the routes hand it over: validated field by field, not yet against a model."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from api.errors import invalid
from api.generation_fields import GenerationFields
from api.tool_use import ToolUse

MAX_IDEMPOTENCY_KEY = 255  # characters


@dataclass(frozen=True)
class Submission:
    """What was sent, and how it is to be read; `prompt` and `messages` are as a job has them, one of them None."""

    kind: str  # job | completion | chat | response | embedding
    sent: GenerationFields
    prompt: str | list[int] | None
    messages: list[dict[str, Any]] | None
    max_tokens: int | None  # None: default_max_tokens, or what there is room for
    default_max_tokens: int
    prompt_name: str = field(default="prompt", kw_only=True)  # the field that the prompt came in
    stream: bool
    idempotency_key: str | None
    tools: ToolUse | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template, beside the usual ones
    finish_by: datetime | None = None  # where it is not `sent.finish_by`
    request: dict[str, Any] | None = None  # what only its dress needs to answer

    def __post_init__(self) -> None:
        check_idempotency_key(self.idempotency_key)

    def digest(self) -> bytes:
        """Of the fields that were sent, in whatever order. Defaults are left out: a later version may have others."""
        body = self.sent.model_dump(mode="json", exclude_unset=True)
        return hashlib.sha256(json.dumps([self.kind, body], sort_keys=True, separators=(",", ":")).encode()).digest()


def check_idempotency_key(key: str | None) -> None:
    """Raise the 400 for a key that is empty or too long."""
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key has {len(key)} characters; it takes 1 to {MAX_IDEMPOTENCY_KEY}."
        raise invalid(message, param="Idempotency-Key")
