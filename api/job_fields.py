"""The fields of whatever becomes a job: which model, before whom, and until when."""

from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from api.fields import TIER_MEANING, ModelName, Moment, RequestObject, Tier, wrong_field

FIRST_FIELDS = ("model", "kind", "prompt", "messages", "input", "max_tokens", "tier", "stream")
LAST_FIELDS = ("start_by", "finish_by", "run_for")


def _arrange(schema: dict[str, Any]) -> None:
    """In the reference, put first what a newcomer needs first; pydantic would begin with the shared fields."""
    properties = schema["properties"]
    last = {name: properties.pop(name) for name in LAST_FIELDS if name in properties}
    first = {name: properties[name] for name in FIRST_FIELDS if name in properties}
    schema["properties"] = first | properties | last


class JobFields(RequestObject):
    """A field sent as null counts as not sent; an unknown one is refused."""

    model_config = ConfigDict(json_schema_extra=_arrange)

    model: ModelName = Field(description="Name of a served model; GET /v1/models lists them.")
    tier: Tier = Field("normal", description=TIER_MEANING)
    start_by: Moment | None = Field(
        None,
        description="RFC 3339 time with its offset; a job that has not started by then ends as `expired`.",
        examples=["2026-01-31T18:00:00Z"],
    )
    finish_by: Moment | None = Field(
        None,
        description="RFC 3339 time with its offset, not before `start_by`; a job that has not ended by then ends as "
        "`expired`, keeping what it wrote.",
        examples=["2026-01-31T19:00:00+01:00"],
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _starts_before_it_finishes(self) -> Self:
        if self.start_by is not None and self.finish_by is not None and self.finish_by < self.start_by:
            raise wrong_field("finish_by", "is earlier than start_by")
        return self
