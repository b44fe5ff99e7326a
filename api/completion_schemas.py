"""What goes in and out of POST /v1/completions, as OpenAI spells it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from api.fields import MetadataValue, OpenAIPrompt, RequestObject, only, wrong_field
from api.generation_fields import GenerationFields

DEFAULT_MAX_TOKENS = 16  # OpenAI's

One = Annotated[int, only(1, "must be 1 here; submit one completion per text that you want")]
NoEcho = Annotated[bool, only(False, "is not supported; put the prompt before the text yourself")]
NoSuffix = Annotated[str, only("", "is not supported; these models continue a prompt")]
NoBias = Annotated[dict[str, float], only({}, "is not supported")]


class StreamOptions(RequestObject):
    """How a stream is told."""

    include_usage: bool = Field(False, description="Send a last chunk with the usage.")
    include_obfuscation: bool = Field(False, description="Understood, and ignored.")


class CompletionCreate(GenerationFields):
    """An OpenAI text completion, with a few fields of our own."""

    prompt: OpenAIPrompt = Field(description="The text to continue, or its token ids; a list may hold one of these.")
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1, le=2**31 - 1, description="Most tokens to write.")
    stream: bool = Field(False, description="Send the text as it is written, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    n: One = Field(1, description="Only 1: submit one completion per text that you want.")
    best_of: One = Field(1, description="Only 1.")
    echo: NoEcho = Field(False, description="Only false.")
    suffix: NoSuffix | None = Field(None, description="Only null.")
    logit_bias: NoBias | None = Field(None, description="Only empty.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong_field("stream_options", "needs 'stream': true")
        return self

    @property
    def one_prompt(self) -> str | list[int]:
        """The prompt itself, also where it came as a list of one."""
        if isinstance(self.prompt, list) and len(self.prompt) == 1 and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return self.prompt  # type: ignore[return-value]  # a list of one prompt was just taken apart

    @property
    def includes_usage(self) -> bool:
        """Whether the chunks of a stream carry `usage`, null in all but the last."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionLogprobs(BaseModel):
    """Log probabilities, one entry per token in each list."""

    tokens: list[str] = Field(description="The text of each token.")
    token_logprobs: list[float] = Field(description="Its log probability.")
    top_logprobs: list[dict[str, float]] | None = Field(description="The likeliest others, text to log probability.")
    text_offset: list[int] = Field(description="Where its text begins in `text`.")


class Choice(BaseModel):
    """The completion's text."""

    index: Literal[0] = Field(0, description="Always 0.")
    text: str = Field(description="The text; in a chunk, the next piece of it.")
    logprobs: CompletionLogprobs | None = Field(None, description="When the request asked for them.")
    finish_reason: Literal["stop", "length"] | None = Field(
        None, description="`stop`: end of sequence or a stop text; `length`: max_tokens."
    )


class PromptTokensDetails(BaseModel):
    """Details of `prompt_tokens`."""

    cached_tokens: int = Field(description="Those that were not computed again.")


class CompletionUsage(BaseModel):
    """Tokens counted."""

    prompt_tokens: int = Field(description="Tokens of the prompt.")
    completion_tokens: int = Field(description="Tokens written.")
    total_tokens: int = Field(description="Their sum.")
    prompt_tokens_details: PromptTokensDetails = Field(description="About the prompt's tokens.")


class Completion(BaseModel):
    """A completion, or a chunk of a streamed one."""

    id: str = Field(description="Its id; GET /v1/jobs/job_... with the same digits shows the job behind it.")
    object: Literal["text_completion"] = Field("text_completion", description="Always `text_completion`.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="The model it ran on.")
    choices: list[Choice] = Field(description="One choice; none in the chunk with the usage.")
    usage: CompletionUsage | None = Field(None, description="Tokens counted.")

    def whole(self, choice: Choice, usage: CompletionUsage) -> dict[str, Any]:
        """All of it at once."""
        return self.model_copy(update={"choices": [choice], "usage": usage}).model_dump(mode="json")

    def chunk(
        self, choices: list[Choice], usage: CompletionUsage | None = None, *, has_usage: bool = False
    ) -> dict[str, Any]:
        """A piece of it; without the field `usage` unless it `has_usage`, be it null."""
        data = self.model_copy(update={"choices": choices, "usage": usage}).model_dump(mode="json")
        return data if has_usage else {name: value for name, value in data.items() if name != "usage"}
