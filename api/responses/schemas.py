"""What goes into POST /v1/responses, as OpenAI spells it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.fields import MetadataValue, RequestObject, Text, only, wrong_field
from api.generation_fields import GenerationFields
from api.message_fields import TemplateFields
from api.openai_fields import ServiceTierField, UsedTier
from api.responses.input import Input
from api.responses.text import TextOptions
from api.responses.tools import ResponseToolFields

DEFAULT_MAX_TOKENS = 256
WINDOWS = {"2h": timedelta(hours=2), "8h": timedelta(hours=8)}
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]

OneOutput = Annotated[int, only(1, "must be 1: a response has one output")]
NoConversation = Annotated[Any, only(None, "is not supported; chain responses by 'previous_response_id'")]
NotTruncated = Annotated[str, only("disabled", "must be 'disabled': what does not fit is refused, and nothing dropped")]


class BackgroundOptions(RequestObject):
    """When a response in the background has to be there."""

    completion_window: Literal["soonest", "2h", "8h"] = Field(
        "soonest", description="`2h`, `8h`: it ends as failed when it is not there by then; `soonest`: no limit."
    )


class ResponseStreamOptions(RequestObject):
    """How a stream is told."""

    include_obfuscation: bool = Field(False, description="Understood, and ignored.")


class Reasoning(RequestObject):
    """How a reasoning model reasons."""

    effort: MetadataValue | None = Field(None, description="Understood, and ignored.")
    summary: MetadataValue | None = Field(None, description="Understood, and ignored.")
    generate_summary: MetadataValue | None = Field(None, description="Understood, and ignored.")


class ResponseCreate(GenerationFields, TemplateFields, ResponseToolFields, ServiceTierField):
    """An OpenAI response, with the fields of a job that choose tokens and set limits."""

    input: Input = Field(description="What the user says: a text, or items of a conversation.")
    instructions: Text | None = Field(None, description="The system's message; not carried on to the next response.")
    previous_response_id: MetadataValue | None = Field(
        None, description="The response that this one follows: its input and output come before this input."
    )
    background: bool = Field(False, description="Answer at once; it goes on whether or not somebody waits.")
    background_options: BackgroundOptions | None = Field(None, description="Only with `background`.")
    stream: bool = Field(False, description="Send events as it is written.")
    stream_options: ResponseStreamOptions | None = Field(None, description="Only with `stream`.")
    store: bool = Field(True, description="Keep it, so that it can be retrieved; needed for `background`.")
    max_output_tokens: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Most tokens to write. Default: 256, or what the model has room for."
    )
    top_logprobs: int = Field(
        0, ge=0, le=20, description="So many alternatives for each token's log probability, which are then reported."
    )
    text: TextOptions | None = Field(None, description="What the text must look like.")
    include: list[Included] = Field(
        default_factory=list,
        max_length=16,
        description="`message.output_text.logprobs` reports log probabilities; the others have nothing to say here.",
    )
    truncation: NotTruncated = Field("disabled", description="Only `disabled`.")
    conversation: NoConversation = Field(None, description="Only null.")
    n: OneOutput = Field(1, description="Only 1.")
    reasoning: Reasoning | None = Field(None, description="Understood, and ignored.")
    prompt_cache_key: MetadataValue | None = Field(None, description="Understood, and ignored.")
    safety_identifier: MetadataValue | None = Field(None, description="Understood, and ignored.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")

    @model_validator(mode="after")
    def _means_a_job(self) -> Self:
        """Set what a job calls by another name."""
        if self.wants_logprobs and self.logprobs is None:
            self.logprobs = self.top_logprobs
        if self.text is not None and self.structured_output is None:
            self.structured_output = self.text.structured_output
        return self

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong_field("stream_options", "needs 'stream': true")
        if self.background_options is not None and not self.background:
            raise wrong_field("background_options", "needs 'background': true")
        if self.background and not self.store:
            raise wrong_field("store", "must be true with 'background': what is not kept cannot be fetched later")
        if self.window is not None and (self.stream or self.tier != "normal"):
            raise wrong_field("background_options", "a window of hours needs the normal tier, and no 'stream'")
        if self.num_beams > 1 or self.prompt_logprobs is not None:
            raise wrong_field("num_beams" if self.num_beams > 1 else "prompt_logprobs", "is for completions and jobs")
        return self

    @property
    def window(self) -> timedelta | None:
        """How long it may take."""
        return None if self.background_options is None else WINDOWS.get(self.background_options.completion_window)

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token's log probability is reported."""
        return self.top_logprobs > 0 or "message.output_text.logprobs" in self.include

    def last_moment(self) -> datetime | None:
        """By when it has to be there: the nearer of its own limit and the window's end."""
        by_window = None if self.window is None else datetime.now(UTC) + self.window
        return min((each for each in (by_window, self.finish_by) if each is not None), default=None)

    def as_answered(self) -> dict[str, Any]:
        """What the response repeats of what was sent."""
        text = {"format": {"type": "text"}} if self.text is None or self.text.format is None else self.text.answered()
        return self.tools_answered() | {
            "background": self.background,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "previous_response_id": self.previous_response_id,
            "store": self.store,
            "text": text,
            "top_logprobs": self.top_logprobs,
            "truncation": self.truncation,
            "user": self.user,
        }


class DeletedResponse(BaseModel):
    """The answer to a deletion."""

    id: str = Field(description="Id of the response that was deleted.")
    object: Literal["response"] = Field("response", description="Always `response`.")
    deleted: Literal[True] = Field(True, description="Always true.")


class ResponseObject(BaseModel):
    """A response as it stands. What was sent is repeated beside these."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="Its id; GET /v1/jobs/job_... with the same digits shows the job behind it.")
    object: Literal["response"] = Field("response", description="Always `response`.")
    created_at: float = Field(description="Unix time in seconds.")
    completed_at: float | None = Field(description="When it was completed; null otherwise.")
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"] = Field(
        description="`incomplete`: it reached its most tokens."
    )
    model: str = Field(description="The model it runs on.", examples=["MODEL"])
    output: list[dict[str, Any]] = Field(description="What was written, as items; none before the end.")
    error: dict[str, Any] | None = Field(description="Why it failed.")
    incomplete_details: dict[str, Any] | None = Field(description="Why it is incomplete.")
    usage: dict[str, Any] | None = Field(description="Tokens counted; null before the end.")
    service_tier: UsedTier = Field(description="The tier that it was run in.")
    metadata: dict[str, str] = Field(description="As sent.")
    previous_response_id: str | None = Field(description="As sent.")
    background: bool = Field(description="As sent.")
