"""What goes in and out of the job API. Every field is described, as these models are the reference at /docs."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Path
from pydantic import BaseModel, Field, model_validator

from api.body_limit import BODY_SECONDS, MAX_BODY_BYTES, MAX_FILE_BYTES
from api.chat.calls import ChatToolCall
from api.fields import TIER_MEANING, Prompt, Tier, wrong_field
from api.generation_fields import GenerationFields
from api.message_fields import Messages, TemplateFields
from api.pages import Listed, Page
from api.tool_fields import ToolFields

StatusName = Literal["queued", "running", "succeeded", "failed", "cancelled", "expired", "dead"]
EMBEDDING_FIELDS = frozenset(
    ("kind", "model", "prompt", "tier", "webhook_url", "metadata", "start_by", "finish_by", "run_for", "stream")
)


class JobCreate(GenerationFields, TemplateFields, ToolFields):
    """A generation to run, of exactly one of `prompt` and `messages`; or an embedding, of a `prompt`."""

    kind: Literal["job", "embedding"] = Field(
        "job",
        description="`job` writes text. `embedding` makes a vector of the prompt, as POST /v1/embeddings does: its "
        f"`output` has it as `embedding`. It takes only {', '.join(f'`{name}`' for name in sorted(EMBEDDING_FIELDS))}.",
    )
    prompt: Prompt | None = Field(None, description="The text to continue, or to embed; or its token ids.")
    messages: Messages | None = Field(None, description="A conversation; the model's chat template makes the prompt.")
    max_tokens: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Most tokens to write. Default: 256, or what the model has room for."
    )
    stream: bool = Field(
        True, description="Whether GET /v1/jobs/{id}/events tells each token, or only queued, started and the end."
    )

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            param = "prompt" if self.prompt is None else "messages"
            raise wrong_field(param, "send exactly one of 'prompt' and 'messages'")
        for name in ("tools", "chat_template_kwargs"):
            if self.messages is None and getattr(self, name):
                raise wrong_field(name, "needs 'messages'")
        return self

    @model_validator(mode="after")
    def _embeds_a_prompt(self) -> Self:
        others = self.model_fields_set - EMBEDDING_FIELDS
        if self.kind == "embedding" and others:
            raise wrong_field(min(others), "is not for an embedding, which is of a 'prompt' and writes nothing")
        return self


class Estimate(BaseModel):
    """When a queued job will probably start, from how fast, and how evenly, its model's jobs started of late."""

    start_in_seconds: float = Field(description="Seconds from now.", examples=[3.5])
    start_at: datetime = Field(description="The same as a time.")
    earliest: datetime = Field(
        description="Nine starts in ten are between `earliest` and `latest`, which come from the variance of the "
        "starts per second and from how many were measured. This one is for no more arrivals in better tiers."
    )
    latest: datetime = Field(description="The end of that interval: better tiers go on arriving as they did.")


class TokenLogprobs(BaseModel):
    """One token's log probability."""

    logprob: float = Field(description="Log probability of the token that was chosen.", examples=[-0.31])
    top: list[tuple[int, float]] = Field(
        description="The likeliest alternatives: pairs of token id and log probability.",
        examples=[[[506, -0.31], [496, -2.4]]],
    )


class OneOutput(BaseModel):
    """A text that the model wrote."""

    text: str = Field(
        description="The output as text, its calls as the model spells them.",
        examples=["the best and the worst of times"],
    )
    content: str | None = Field(
        description="Of a job with tools, the text without its calls; null where there are only calls."
    )
    tool_calls: list[ChatToolCall] | None = Field(
        description="Of a job with tools, what is called, if anything. With `content` and the role `assistant` it is a "
        "message to send back. Of an output that was cut short, the last call may be too."
    )
    finish_reason: Literal["stop", "length"] | None = Field(
        description="`stop`: end of sequence or a stop text; `length`: max_tokens; null: it was cut short."
    )
    token_ids: list[int] = Field(description="The output as token ids.", examples=[[506, 1791]])
    logprobs: list[TokenLogprobs] | None = Field(description="One entry per token, when the job asked for them.")


class JobChoice(OneOutput):
    """One of the outputs of a job that asked for several."""

    index: int = Field(description="Which one, from 0.", examples=[1])


class JobOutput(OneOutput):
    """What the model wrote. A job that was cut short keeps what it had. Of several choices, this is the first."""

    choices: list[JobChoice] | None = Field(description="All outputs, where the job asked for more than one.")
    prompt_logprobs: list[TokenLogprobs | None] | None = Field(
        description="One entry per token of the prompt, null for the first, when the job asked for them."
    )
    embedding: list[float] | None = Field(description="The vector of an embedding job, whose text is empty.")


class Usage(BaseModel):
    """Tokens counted."""

    prompt_tokens: int = Field(description="Tokens of the prompt.", examples=[9])
    completion_tokens: int = Field(description="Tokens written.", examples=[32])
    total_tokens: int = Field(description="Their sum.", examples=[41])
    cached_tokens: int = Field(description="Prompt tokens that were not computed again.", examples=[0])


class JobError(BaseModel):
    """Why a job did not succeed."""

    code: str = Field(description="For programs.", examples=["start_by_passed"])
    message: str = Field(description="For people.", examples=["The job did not start by 2026-01-01T12:00:00Z."])


class Crash(BaseModel):
    """An attempt that ended with its worker."""

    attempt: int = Field(description="Which attempt it was.", examples=[1])
    worker_id: str = Field(description="The worker that was lost; a restarted one has another id.")
    worker: str | None = Field(description="The worker's name.", examples=["engine@gpu-3"])
    at: datetime = Field(description="When the loss was noticed.")
    tokens: int = Field(description="How many tokens the job had written by then.", examples=[0])


class Links(BaseModel):
    """Paths of what belongs to the job."""

    self: str = Field(description="The job.", examples=["/v1/jobs/job_0193e4c2a1b47c3d8e5f60718293a4b5"])
    events: str = Field(description="Its events, live and from the past.")
    cancel: str = Field(description="POST here to cancel it.")
    deliveries: str = Field(description="What became of its webhooks.")


class JobView(Listed):
    """A job as it stands."""

    id: str = Field(description="Its id.", examples=["job_0193e4c2a1b47c3d8e5f60718293a4b5"])
    object: Literal["job"] = Field("job", description="Always `job`.")
    kind: Literal["job", "completion", "chat", "response", "embedding"] = Field(
        description="`job` is text and `embedding` a vector, by POST /v1/jobs; what came by another path is named after"
        " it. A replay has the kind of what it repeats."
    )
    model: str = Field(description="The model it runs on.", examples=["MODEL"])
    status: StatusName = Field(
        description="queued → running → succeeded | failed | cancelled | expired | dead. A running job whose worker "
        "was lost or drained is queued again and goes on from its last token. `dead` crashed three workers."
    )
    tier: Tier = Field(description=TIER_MEANING)
    created_at: datetime = Field(description="When it was accepted.")
    ready_at: datetime | None = Field(
        description="Since when it competes for a seat; null while other jobs of the same key go first."
    )
    started_at: datetime | None = Field(description="When a worker first took it.")
    ended_at: datetime | None = Field(description="When it reached its last status.")
    attempt: int = Field(description="How often a worker took it; 0 before the first.", examples=[1])
    position: int | None = Field(
        description="Place among the waiting jobs of its model, 1 being next. Null unless queued, and in lists."
    )
    estimate: Estimate | None = Field(description="When it will probably start; null when that cannot be told.")
    output: JobOutput | None = Field(description="What was written; null before the end, and in lists.")
    usage: Usage | None = Field(description="Tokens counted; null before the end.")
    error: JobError | None = Field(description="Why it did not succeed; null otherwise.")
    crashes: list[Crash] = Field(
        description="The attempts whose worker was lost before they got any further; with the third the job is `dead`."
    )
    replay_of: str | None = Field(description="The ended job that this one repeats; null unless it is a replay.")
    metadata: dict[str, str] = Field(description="As sent.", examples=[{"chapter": "1"}])
    webhook_url: str | None = Field(description="As sent.")
    start_by: datetime | None = Field(description="As sent.")
    finish_by: datetime | None = Field(description="As sent.")
    run_for: float | None = Field(description="As sent.")
    stream: bool = Field(description="Whether its events tell each token.")
    seed: int = Field(description="What fixed its randomness: as sent, or chosen at submit.", examples=[7])
    max_tokens: int = Field(description="Most tokens it may write, in each of its outputs.", examples=[32])
    n: int = Field(description="How many outputs it writes.", examples=[1])
    links: Links = Field(description="Where to go from here.")


class JobList(Page[JobView]):
    """A page of jobs, newest first."""

    data: list[JobView] = Field(description="The jobs, without outputs, positions and estimates.")


class DeletedJob(BaseModel):
    """The answer to a deletion."""

    id: str = Field(description="Id of the job that was deleted.")
    object: Literal["job"] = Field("job", description="Always `job`.")
    deleted: Literal[True] = Field(True, description="Always true.")


class ErrorDetail(BaseModel):
    """An error in words, and in codes for programs."""

    message: str = Field(description="For people: what is wrong, with the numbers, and the way out.")
    type: str = Field(description="The class of the error.", examples=["invalid_request_error"])
    param: str | None = Field(description="The field it is about.", examples=["max_tokens"])
    code: str | None = Field(description="For programs.", examples=["context_length_exceeded"])


class ErrorBody(BaseModel):
    """Every error has this shape, and every reply an `x-request-id` header."""

    error: ErrorDetail = Field(description="What went wrong.")


JobId = Annotated[str, Path(description="The job's id.", examples=["job_0193e4c2a1b47c3d8e5f60718293a4b5"])]


def error_replies(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route for the errors that it can answer. Where a key is asked for, so is its scope."""
    statuses = (*statuses, 403) if 401 in statuses else statuses
    return {status: {"model": ErrorBody, "description": ERRORS[status]} for status in statuses}


ERRORS = {
    400: "A field is wrong, or prompt and max_tokens do not fit; `param` names the field.",
    401: "The key is missing or unknown.",
    403: "The key may not do this.",
    404: "There is no such thing, or it belongs to someone else.",
    409: "The job has not ended, or the file is in use.",
    408: f"The body did not arrive within {BODY_SECONDS:g} seconds.",
    413: f"The body is over {MAX_BODY_BYTES:,} bytes, or a file over {MAX_FILE_BYTES:,}.",
    422: "The Idempotency-Key was used with another body.",
    429: "The queue is full, or the key is at one of its limits; Retry-After says when to try again.",
    500: "The job did not succeed; the message has its error.",
    503: "A store is not reachable, no model has been loaded yet, or the API cannot read the model's tokenizer. "
    "Where trying again soon may help, Retry-After says when.",
    504: "The job ran out of time.",
}
