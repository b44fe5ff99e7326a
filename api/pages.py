"""A page of a list, and where it begins: the same for all lists."""

from collections.abc import Sequence
from typing import Generic, Literal, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field

from api.errors import invalid
from db.ids import parse_id


class Listed(BaseModel):
    """What stands in a list."""

    id: str = Field(description="Its id.")


Item = TypeVar("Item", bound=Listed)


class Page(BaseModel, Generic[Item]):
    """A part of a list; the next one begins after `last_id`."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Item] = Field(description="What is in the page.")
    first_id: str | None = Field(description="Id of the first one.")
    last_id: str | None = Field(description="Id of the last one: the next page's `after`.")
    has_more: bool = Field(description="Whether there is a next page.")

    @classmethod
    def of(cls, items: Sequence[Item], *, limit: int) -> Self:
        """At most `limit` of the items; one more says that there is a next page."""
        data = list(items[:limit])
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first_id, last_id=last_id, has_more=len(items) > limit)


def parse_after(after: str | None, prefix: str) -> UUID | None:
    """What a page begins after; None for the first page. Raises ApiError for what is no id with that prefix."""
    if after is None:
        return None
    parsed = parse_id(prefix, after)
    if parsed is None:
        raise invalid(f"'after' is '{after[:60]}', which is no id that begins with '{prefix}'.", param="after")
    return parsed
