"""What goes in and out of the batch API, as OpenAI spells it."""

import re
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Path
from pydantic import AfterValidator, BaseModel, Field

from api.batches.endpoints import ENDPOINTS
from api.fields import Metadata, MetadataKey, RequestObject
from api.files.schemas import FILE_EXAMPLE, LONGEST_EXPIRY, PREFIX, SHORTEST_EXPIRY, unix_time
from api.pages import Listed, Page
from db.ids import public_id
from db.models import Batch

BATCH_PREFIX = "batch_"
WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LONGEST_WINDOW = timedelta(days=14)

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
BatchId = Annotated[str, Path(description="The batch's id.", examples=["batch_0193e4c2a1b47c3d8e5f60718293a4b5"])]


def window_of(text: str) -> timedelta:
    """`24h` as a time; raises ValueError."""
    match = WINDOW.fullmatch(text)
    window = timedelta(**{UNITS[match[2]]: int(match[1])}) if match else timedelta(0)
    if not timedelta(0) < window <= LONGEST_WINDOW:
        raise ValueError(f"must be a time such as 90m, 24h or 7d, of at most {LONGEST_WINDOW.days} days")
    return window


def _window(text: str) -> str:
    window_of(text)
    return text


def _endpoint(url: str) -> str:
    if url not in ENDPOINTS:
        raise ValueError(f"must be one of {', '.join(ENDPOINTS)}")
    return url


class OutputExpiresAfter(RequestObject):
    """When the files that a batch writes are removed."""

    anchor: Literal["created_at"] = Field(description="Counted from when the file is whole: the batch's end.")
    seconds: int = Field(ge=SHORTEST_EXPIRY, le=LONGEST_EXPIRY, description="Seconds from then on.")


class BatchCreate(RequestObject):
    """A file of requests to run."""

    input_file_id: MetadataKey = Field(description="A file of the purpose `batch`.", examples=[FILE_EXAMPLE])
    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        max_length=64, description=f"The `url` of every line: {', '.join(ENDPOINTS)}.", examples=list(ENDPOINTS)
    )
    completion_window: Annotated[str, AfterValidator(_window)] = Field(
        max_length=16,
        description="The longest that it may take, such as `24h`, `90m` or `7d`; what has not ended by then expires.",
        examples=["24h"],
    )
    metadata: Metadata | None = Field(None, description="Up to 16 pairs of your own.")
    output_expires_after: OutputExpiresAfter | None = Field(
        None, description="When its files are removed; 30 days after their creation if not sent."
    )


class BatchError(BaseModel):
    """What is wrong with the input."""

    code: str = Field(description="For programs.", examples=["invalid_json_line"])
    line: int | None = Field(description="The line of the input file, from 1; null: the file as a whole.", examples=[7])
    message: str = Field(description="For people.")
    param: str | None = Field(description="The field of the line.")


class BatchErrors(BaseModel):
    """Why a batch failed."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[BatchError] = Field(description="The first 100 errors.")


class RequestCounts(BaseModel):
    """How far it is: each line that has ended is counted, once, and is in one of the two files."""

    total: int = Field(description="Lines to run; 0 until the file was checked.")
    completed: int = Field(description="Lines in the output file.")
    failed: int = Field(description="Lines in the error file: refused, failed, cancelled or expired.")


class InputTokensDetails(BaseModel):
    """About `input_tokens`."""

    cached_tokens: int = Field(description="Those that were not computed again.")


class OutputTokensDetails(BaseModel):
    """About `output_tokens`."""

    reasoning_tokens: Literal[0] = Field(0, description="Not told apart here.")


class BatchUsage(BaseModel):
    """Tokens of the lines that have ended."""

    input_tokens: int = Field(description="Of prompts.")
    input_tokens_details: InputTokensDetails = Field(description="About them.")
    output_tokens: int = Field(description="Written.")
    output_tokens_details: OutputTokensDetails = Field(description="About them.")
    total_tokens: int = Field(description="Their sum.")


class BatchView(Listed):
    """A batch as it stands. Times are Unix times in seconds, null until it comes to that."""

    id: str = Field(description="Its id.", examples=["batch_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["batch"] = Field("batch", description="Always `batch`.")
    endpoint: str = Field(description="What its lines call.")
    model: str | None = Field(description="The model of its lines; null where they name several.")
    errors: BatchErrors | None = Field(description="What is wrong with the input, of a batch that `failed`.")
    input_file_id: str = Field(description="As sent.")
    completion_window: str = Field(description="As sent.")
    status: BatchStatus = Field(
        description="validating → in_progress → finalizing → completed | expired; or failed, of a wrong input; or "
        "cancelling → cancelled. A batch whose lines all failed is `completed`, without an output file."
    )
    output_file_id: str | None = Field(description="What succeeded; readable, and growing, while the batch runs.")
    error_file_id: str | None = Field(description="What did not; as above.")
    created_at: int = Field(description="When it was accepted.")
    in_progress_at: int | None = Field(description="When its lines began to run.")
    expires_at: int = Field(description="When its window ends.")
    finalizing_at: int | None = Field(description="When all of its lines had ended.")
    completed_at: int | None = Field(description="When its files were written.")
    failed_at: int | None = Field(description="When its input was found wrong.")
    expired_at: int | None = Field(description="When it ended, of a batch whose window was over.")
    cancelling_at: int | None = Field(description="When it was to be cancelled.")
    cancelled_at: int | None = Field(description="When it was.")
    request_counts: RequestCounts = Field(description="How far it is.")
    usage: BatchUsage | None = Field(description="Tokens of the lines that have ended; null before the first.")
    metadata: dict[str, str] | None = Field(description="As sent.")


class BatchList(Page[BatchView]):
    """A page of batches, newest first."""

    data: list[BatchView] = Field(description="The batches.")


def batch_view(batch: Batch) -> BatchView:
    """The batch as clients see it."""
    ends = {
        f"{status}_at": unix_time(batch.ended_at) if batch.status == status else None
        for status in ("completed", "failed", "expired", "cancelled")
    }
    return BatchView(
        id=public_id(BATCH_PREFIX, batch.id),
        endpoint=batch.endpoint,
        model=batch.model,
        errors=None if batch.errors is None else BatchErrors(data=[BatchError(**error) for error in batch.errors]),
        input_file_id=public_id(PREFIX, batch.input_file_id),
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=public_id(PREFIX, batch.output_file_id) if batch.num_completed else None,
        error_file_id=public_id(PREFIX, batch.error_file_id) if batch.num_failed else None,
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=unix_time(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=unix_time(batch.finalizing_at),
        cancelling_at=unix_time(batch.cancelling_at),
        request_counts=RequestCounts(total=batch.num_total, completed=batch.num_completed, failed=batch.num_failed),
        usage=_usage(batch),
        metadata=batch.metadata_ or None,
        **ends,
    )


def _usage(batch: Batch) -> BatchUsage | None:
    if not batch.num_completed + batch.num_failed:
        return None
    return BatchUsage(
        input_tokens=batch.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=batch.cached_tokens),
        output_tokens=batch.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=batch.input_tokens + batch.output_tokens,
    )
