"""What goes into POST /v1/chat/completions, as OpenAI spells it, with fields of our own."""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from api.fields import MAX_LOGPROBS, MetadataValue, only, wrong_field
from api.format_fields import ResponseFormat, schema_of
from api.generation_fields import GenerationFields
from api.message_fields import JsonObject, Messages, TemplateFields
from api.openai_fields import ServiceTierField, StreamOptions
from api.tool_fields import ToolFields
from db.sampling import Sampling, StructuredOutput

TEXT_ONLY = "must be ['text']; these models write nothing else"
IGNORED = "Understood, and ignored."

TextOnly = Annotated[list[Literal["text"]], only(["text"], TEXT_ONLY)]
NoSearch = Annotated[None, only(None, "is not supported; these models search nothing")]
NoFunctions = Annotated[None, only(None, "is what OpenAI had before 'tools'; send 'tools' and 'tool_choice'")]
NoAudio = Annotated[None, only(None, "is not supported; these models write text")]
NoModeration = Annotated[None, only(None, "is not supported; nothing is moderated here")]


class ChatCreate(GenerationFields, TemplateFields, ToolFields, ServiceTierField):
    """An OpenAI chat completion."""

    messages: Messages = Field(description="The conversation; the model's chat template makes the prompt.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Most tokens to write. Default: 4,096, or what the model has room for."
    )
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="Its older name. Send one of them.")
    stream: bool = Field(False, description="Send the message as it is written, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    logprobs: bool | None = Field(None, description="Report each token's log probability.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Report that of so many alternatives too; needs `logprobs`."
    )
    response_format: ResponseFormat | None = Field(
        None,
        description="`json_object`, or `json_schema`: the message's content follows it to the letter. Beside `tools` "
        "the model may call one of them instead.",
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="For templates that know it, as `reasoning_effort`."
    )
    user: MetadataValue | None = Field(None, description=IGNORED)
    safety_identifier: MetadataValue | None = Field(None, description=IGNORED)
    prompt_cache_key: MetadataValue | None = Field(None, description="Ignored: equal beginnings are always shared.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(None, description=IGNORED)
    prompt_cache_options: JsonObject | None = Field(None, description=IGNORED)
    prediction: JsonObject | None = Field(None, description=IGNORED)
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description=IGNORED)
    store: bool | None = Field(None, description="Ignored: the job behind it is always kept, see GET /v1/jobs.")
    modalities: TextOnly | None = Field(None, description="Only text.")
    audio: NoAudio = Field(None, description="Only null.")
    moderation: NoModeration = Field(None, description="Only null.")
    web_search_options: NoSearch = Field(None, description="Only null.")
    functions: NoFunctions = Field(None, description="Only null; send `tools`.")
    function_call: NoFunctions = Field(None, description="Only null; send `tool_choice`.")

    @model_validator(mode="after")
    def _fields_go_together(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise wrong_field("max_tokens", "says another number than 'max_completion_tokens'; send one of them")
        if self.stream_options is not None and not self.stream:
            raise wrong_field("stream_options", "needs 'stream': true")
        if self.prompt_logprobs is not None and self.stream:
            raise wrong_field("prompt_logprobs", "is told with a whole message only; leave out 'stream'")
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong_field("top_logprobs", "needs 'logprobs': true")
        if self.structured_output is not None and schema_of(self.response_format) is not None:
            raise wrong_field("structured_output", "says what 'response_format' says; send one of them")
        return self

    @property
    def most_tokens(self) -> int | None:
        """By either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def includes_usage(self) -> bool:
        """Whether the chunks of a stream carry `usage`, null in all but the last."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is given beside messages and tools."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return effort | self.chat_template_kwargs

    @property
    def structure_param(self) -> str:
        """The field that says what the output must follow."""
        return super().structure_param if self.response_format is None else "response_format"

    def sampling(self, bad_words: Iterable[tuple[int, ...]]) -> Sampling:
        """As of a job; chat says log probabilities and the form of the answer in its own way."""
        sampling = super().sampling(bad_words)
        changes: dict[str, Any] = {"logprobs": (self.top_logprobs or 0) if self.logprobs else None}
        schema = schema_of(self.response_format)
        if schema is not None:
            changes["structured_output"] = StructuredOutput(kind="json_schema", text=json.dumps(schema))
        return sampling.model_copy(update=changes)
