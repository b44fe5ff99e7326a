"""What goes in and out of POST /v1/completions, as OpenAI spells it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.fields import (
    MAX_LOGPROBS,
    MAX_METADATA_PAIRS,
    TIER_MEANING,
    GenerationFields,
    MetadataKey,
    MetadataValue,
    ModelName,
    Text,
    Tier,
    TokenId,
    WebhookUrl,
)

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = Field(False, description="Send a last chunk with the usage.")
    include_obfuscation: bool = Field(False, description="Understood, and ignored.")


class CompletionCreate(GenerationFields):
    """An OpenAI text completion, with a few fields of our own."""

    model: ModelName = Field(description="Name of a served model; GET /v1/models lists them.")
    prompt: Text | list[TokenId] | list[Text | list[TokenId]] = Field(
        description="The text to continue, or its token ids; a list may hold one of these."
    )
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1, le=2**31 - 1, description="Most tokens to write.")
    stream: bool = Field(False, description="Send the text as it is written, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Report each token's log probability and that of so many alternatives."
    )
    n: int = Field(1, description="Only 1: submit one completion per text that you want.")
    best_of: int = Field(1, description="Only 1.")
    echo: bool = Field(False, description="Only false.")
    suffix: str | None = Field(None, description="Only null.")
    logit_bias: dict[str, float] | None = Field(None, description="Only empty.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")
    tier: Tier = Field("normal", description=TIER_MEANING)
    webhook_url: WebhookUrl | None = Field(None, description="Receives one signed event when the completion ends.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA_PAIRS)] = Field(
        default_factory=dict, description="Up to 16 pairs of your own; the job of the completion carries them."
    )

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if not isinstance(self.prompt, str) and len(self.prompt) > 1 and not isinstance(self.prompt[0], int):
            raise ValueError("one prompt per completion here; submit the others by themselves")
        if self.n != 1 or self.best_of != 1:
            raise ValueError("'n' and 'best_of' must be 1 here; submit one completion per text that you want")
        if self.echo:
            raise ValueError("'echo' is not supported; put the prompt before the text yourself")
        if self.suffix:
            raise ValueError("'suffix' is not supported; these models continue a prompt")
        if self.logit_bias:
            raise ValueError("'logit_bias' is not supported")
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' needs 'stream': true")
        return self

    @property
    def one_prompt(self) -> str | list[int]:
        """The prompt itself, also where it came as a list of one."""
        if isinstance(self.prompt, list) and len(self.prompt) == 1 and not isinstance(self.prompt[0], int):
            return self.prompt[0]
        return self.prompt  # type: ignore[return-value]  # a list of one text was just taken apart


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

    def chunk(self, choices: list[Choice], usage: CompletionUsage | None = None) -> dict[str, Any]:
        """A chunk of this completion."""
        return self.model_copy(update={"choices": choices, "usage": usage}).model_dump(mode="json")
