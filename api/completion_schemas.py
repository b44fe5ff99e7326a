"""What goes in and out of POST /v1/completions, as OpenAI spells it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from api.fields import MetadataValue, OpenAIPrompt, RequestObject, only, wrong_field
from api.generation_fields import GenerationFields
from api.schemas import TokenLogprobs

DEFAULT_MAX_TOKENS = 16  # OpenAI's

NoEcho = Annotated[bool, only(False, "is not supported; put the prompt before the text yourself")]
NoSuffix = Annotated[str, only("", "is not supported; these models continue a prompt")]


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
    best_of: int | None = Field(None, description="Only as many as `n`: no choice is thrown away.")
    echo: NoEcho = Field(False, description="Only false.")
    suffix: NoSuffix | None = Field(None, description="Only null.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")

    @model_validator(mode="after")
    def _best_of_is_n(self) -> Self:
        if self.best_of is not None and self.best_of != self.n:
            raise wrong_field("best_of", f"must be as 'n', {self.n}, or not be sent; for the best ones use 'num_beams'")
        return self

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong_field("stream_options", "needs 'stream': true")
        if self.prompt_logprobs is not None and self.stream:
            raise wrong_field("prompt_logprobs", "is told with a whole completion only; leave out 'stream'")
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
    """One of the completion's texts."""

    index: int = Field(0, description="Which one, from 0.")
    text: str = Field("", description="The text; in a chunk, the next piece of it.")
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
    choices: list[Choice] = Field(description="As many as `n`; in a chunk one, or none beside the usage.")
    usage: CompletionUsage | None = Field(None, description="Tokens counted.")
    prompt_logprobs: list[TokenLogprobs | None] | None = Field(
        None, description="One entry per token of the prompt, null for the first, when the request asked for them."
    )

    def whole(
        self, choices: list[Choice], usage: CompletionUsage, *, prompt_logprobs: list[Any] | None
    ) -> dict[str, Any]:
        """All of it at once."""
        data = self.model_copy(update={"choices": choices, "usage": usage}).model_dump(mode="json")
        return data | {"prompt_logprobs": prompt_logprobs}

    def chunk_without_choices(self, *, has_usage: bool) -> dict[str, Any]:
        """What all chunks of a stream have in common; `usage` is null, or left out unless it `has_usage`."""
        left_out = {"choices", "prompt_logprobs"} if has_usage else {"choices", "prompt_logprobs", "usage"}
        return self.model_dump(mode="json", exclude=left_out)
