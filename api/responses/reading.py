"""What reading a response's tokens depends on."""

from api.chat.choice import Reading
from api.kept_spelling import spelling_in
from api.output import choices_of
from api.responses.items import Item, ResponseItems
from api.services import Services
from api.submit import find_card
from db.job_queries import JobRow
from db.models import Status


async def reading_of(services: Services, row: JobRow) -> Reading:
    """How the tokens of this response are read. Log probabilities need the model's tokenizer, where they are told."""
    tokenizer = None
    if row.input.sampling["logprobs"] is not None:
        tokenizer = await services.texts.tokenizer(await find_card(services, row.job.model))
    return Reading(row.job.id, spelling_in(row.input.request), tokenizer)


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
