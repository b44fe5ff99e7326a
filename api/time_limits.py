"""Until when something must have started, and ended."""

from typing import Any, Self

from pydantic import Field, model_validator

from api.fields import Moment, RequestObject, wrong_field


class TimeLimits(RequestObject):
    """A field sent as null counts as not sent; an unknown one is refused."""

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
