"""The fields of whatever becomes a job: which model, before whom, and until when."""

from typing import Any

from pydantic import ConfigDict, Field

from api.fields import TIER_MEANING, ModelName, Tier
from api.time_limits import TimeLimits

FIRST_FIELDS = ("model", "kind", "prompt", "messages", "input", "max_tokens", "tier", "stream")
LAST_FIELDS = ("start_by", "finish_by", "run_for")


def _arrange(schema: dict[str, Any]) -> None:
    """In the reference, put first what a newcomer needs first; pydantic would begin with the shared fields."""
    properties = schema["properties"]
    last = {name: properties.pop(name) for name in LAST_FIELDS if name in properties}
    first = {name: properties[name] for name in FIRST_FIELDS if name in properties}
    schema["properties"] = first | properties | last


class JobFields(TimeLimits):
    """What `TimeLimits` says of null and of unknown fields holds for all."""

    model_config = ConfigDict(json_schema_extra=_arrange)

    model: ModelName = Field(description="Name of a served model; GET /v1/models lists them.")
    tier: Tier = Field("normal", description=TIER_MEANING)
