"""What goes in and out of the webhook API: endpoints as the OpenAI clients know them, with what we add."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field

from api.fields import EndpointName, Moment, RequestObject, Text, WebhookUrl
from api.pages import Listed, Page
from db.event_types import EVENT_TYPES, OPENAI_TYPES, EventType

MAX_PAGE = 100
MAX_REPLAYED = 1000  # events in one call

EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=len(EVENT_TYPES), fail_fast=True)]
EndpointId = Annotated[str, Path(description="The endpoint's id.", examples=["we_0193e4c2a1b47c3d8e5f60718293a4b5"])]
EventId = Annotated[str, Path(description="The event's id.", examples=["evt_0193e4c2a1b47c3d8e5f60718293a4b5"])]

URL_MEANING = (
    "Where events are sent by POST. Addresses that are not public are refused, here or at the first attempt, unless "
    "HEADRACE_WEBHOOK_ALLOW_PRIVATE is set."
)
TYPES_MEANING = (
    "Which events. `job.*` is of jobs that were not made as responses; OpenAI's clients do not know these types, so "
    "they are sent only to endpoints that name them."
)


class EndpointCreate(RequestObject):
    """An endpoint to make."""

    name: EndpointName = Field(description="For people.", examples=["billing"])
    url: WebhookUrl = Field(description=URL_MEANING, examples=["https://example.com/hooks/headrace"])
    event_types: EventTypes = Field(
        list(OPENAI_TYPES), description=f"{TYPES_MEANING} Not sent: every `response.*` and `batch.*`."
    )


class EndpointUpdate(RequestObject):
    """What to change of an endpoint; what is not sent stays."""

    name: EndpointName | None = Field(None, description="A new name.")
    url: WebhookUrl | None = Field(
        None, description="A new URL. Events that are on their way go there too, at their next attempt."
    )
    event_types: EventTypes | None = Field(None, description=f"The new set. {TYPES_MEANING}")
    disabled: bool | None = Field(
        None,
        description="`true` stops deliveries, `false` lets them go on. Not sent: an endpoint that was disabled for its "
        "failures is enabled by the update, one that you disabled stays so.",
    )


class RotateSecret(RequestObject):
    """How to rotate."""

    keep_old_secret_active_for_24_hours: bool = Field(
        False, description="Whether deliveries are signed with the old secret too, for a day."
    )


class EndpointTest(RequestObject):
    """What to send as a test."""

    event_type: EventType = Field(description="The type of the event, whether the endpoint gets such or not.")


class Endpoint(Listed):
    """A webhook endpoint."""

    id: str = Field(description="Its id.", examples=["we_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["webhook_endpoint"] = Field("webhook_endpoint", description="Always `webhook_endpoint`.")
    created_at: int = Field(description="When it was made, in Unix seconds.", examples=[1767225600])
    updated_at: int = Field(description="When it, or its secret, was last changed, in Unix seconds.")
    name: str = Field(description="For people.", examples=["billing"])
    url: str = Field(description="Where events go.", examples=["https://example.com/hooks/headrace"])
    event_types: list[str] = Field(description="Which events go there.", examples=[["response.completed"]])
    signing_secret_hint: str = Field(description="The end of its secret.", examples=["whsec_...9PbQ"])
    old_secrets_expire_at: list[int] = Field(description="When each rotated secret stops to sign, in Unix seconds.")
    failing_since: int | None = Field(
        description="Since when every attempt has failed; null while it works. After 5 days it is disabled."
    )
    disabled_at: int | None = Field(description="Since when it gets nothing; null while it is enabled.")
    disabled_reason: str | None = Field(description="Why: by you, by its failures, or because it answered 410.")


class EndpointWithSecret(Endpoint):
    """A webhook endpoint and its secret, which is told this once."""

    signing_secret: str = Field(description="What verifies its events. It is not shown again.")


class EndpointList(Page[Endpoint]):
    """A page of endpoints."""

    data: list[Endpoint] = Field(description="The newest first.")


class DeletedEndpoint(BaseModel):
    """An endpoint that is gone."""

    id: str = Field(description="Its id.", examples=["we_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["webhook_endpoint.deleted"] = Field(
        "webhook_endpoint.deleted", description="Always `webhook_endpoint.deleted`."
    )
    deleted: Literal[True] = Field(True, description="Always `true`.")


class EndpointTestResult(BaseModel):
    """How an endpoint answered a test."""

    object: Literal["webhook_endpoint.test"] = Field(
        "webhook_endpoint.test", description="Always `webhook_endpoint.test`."
    )
    webhook_endpoint_id: str = Field(description="The endpoint.", examples=["we_0193e4c2a1b47c3d8e5f60718293a4b5"])
    event_type: str = Field(description="The type of what was sent.", examples=["response.completed"])
    status_code: int = Field(description="What it answered; 2xx would count as delivered.", examples=[204])
    success: Literal[True] = Field(True, description="Always `true`: it did answer.")


class EventTypeList(BaseModel):
    """The types of events."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[str] = Field(description="All that endpoints may name.", examples=[["response.completed"]])


class EventView(Listed):
    """Something that happened."""

    id: str = Field(description="Its id, sent as `webhook-id`.", examples=["evt_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["webhook_event"] = Field("webhook_event", description="Always `webhook_event`.")
    type: str = Field(description="What happened.", examples=["response.completed"])
    created_at: datetime = Field(description="When.")
    is_test: bool = Field(description="Whether it was made up to test an endpoint.")
    body: dict[str, Any] = Field(description="What is sent.")


class EventList(Page[EventView]):
    """A page of events."""

    data: list[EventView] = Field(description="The newest first.")


class ReplayEvent(RequestObject):
    """Where to send an event again."""

    endpoint: Text | None = Field(
        None,
        description="Only to this endpoint, whatever types it gets. Not sent: everywhere it went, and to the endpoints "
        "that were there and disabled when it happened.",
    )


class ReplayEvents(RequestObject):
    """Which events to send again: those of a time, the oldest first, a page at a time."""

    since: Moment = Field(description="Events that happened then or later.", examples=["2026-01-31T00:00:00Z"])
    until: Moment = Field(description="Events that happened before.", examples=["2026-02-01T00:00:00Z"])
    endpoint: Text | None = Field(
        None,
        description="Only to this endpoint, of its types. Not sent: everywhere they went, and to the endpoints that "
        "were there and disabled when they happened.",
    )
    undelivered: bool = Field(False, description="Only what has not arrived.")
    after: Text | None = Field(None, description="The `last_id` of the page before.")
    limit: int = Field(MAX_REPLAYED, ge=1, le=MAX_REPLAYED, description="Most events that one call looks at.")


class ReplayedEvents(BaseModel):
    """What a replay has set going."""

    object: Literal["webhook_event.replay"] = Field(
        "webhook_event.replay", description="Always `webhook_event.replay`."
    )
    num_events: int = Field(description="How many events it looked at.", examples=[12])
    num_deliveries: int = Field(
        description="How many deliveries are due now. One that is being sent at this moment is not among them."
    )
    last_id: str | None = Field(description="The last event of the page: the next call's `after`.")
    has_more: bool = Field(description="Whether to call again.")
