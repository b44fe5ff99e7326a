"""What reading a response's tokens depends on: kept with it where its model might be gone by then."""

from typing import Any

from api.chat_choice import Reading
from api.output import choices_of
from api.response_items import Item, ResponseItems
from api.response_schemas import ResponseCreate
from api.services import Services
from api.submit import find_card
from db.job_queries import JobRow
from db.models import Status
from workers.text.tool_calls import CallSpelling


async def spelling_of(services: Services, body: ResponseCreate) -> dict[str, Any] | None:
    """How the model's calls are read, as JSON; None where nothing can be called."""
    if body.tool_use is None:
        return None
    card = await find_card(services, body.model)
    spelling = body.tool_use.spelling(card, await services.texts.tokenizer(card))
    return {
        "style": spelling.style,
        "names": sorted(spelling.names),
        "markers": {str(token_id): marker for token_id, marker in spelling.markers.items()},
        "most_calls": spelling.most_calls,
    }


async def reading_of(services: Services, row: JobRow) -> Reading:
    """How the tokens of this response are read. Log probabilities need the model's tokenizer, where they are told."""
    assert row.input.request is not None, "a response has what was sent"
    tokenizer = None
    if row.input.sampling["logprobs"] is not None:
        tokenizer = await services.texts.tokenizer(await find_card(services, row.job.model))
    return Reading(row.job.id, _spelling(row.input.request["calls"]), tokenizer)


def output_items(row: JobRow, reading: Reading) -> list[Item]:
    """The items of a response that has ended; none of one that wrote nothing before it was cut short."""
    if row.output is None:
        return []
    (choice,) = choices_of(row.job, row.output)
    items = ResponseItems(reading)
    items.push(choice.tokens)
    items.finish(is_complete=is_complete(row))
    return items.items


def is_complete(row: JobRow) -> bool:
    """Whether it said all it had to say."""
    return row.job.status == Status.SUCCEEDED and row.job.finish_reason != "length"


def _spelling(said: dict[str, Any] | None) -> CallSpelling | None:
    if said is None:
        return None
    markers = {int(token_id): marker for token_id, marker in said["markers"].items()}
    return CallSpelling(said["style"], frozenset(said["names"]), markers, said["most_calls"])
