"""What goes in and out of POST /v1/completions, as OpenAI spells it."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from api.fields import MetadataValue, OpenAIPrompt, only, wrong_field
from api.generation_fields import GenerationFields
from api.openai_fields import StreamOptions
from api.openai_usage import CompletionUsage
from api.schemas import TokenLogprobs
from db.sampling import Sampling

DEFAULT_MAX_TOKENS = 16  # OpenAI's

NoSuffix = Annotated[str, only("", "is not supported; these models continue a prompt")]


class CompletionCreate(GenerationFields):
    """An OpenAI text completion, with a few fields of our own."""

    prompt: OpenAIPrompt = Field(
        description="The text to continue, or its token ids; or a list of up to 128 such prompts, each a job of "
        "its own."
    )
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=1, le=2**31 - 1, description="Most tokens to write.")
    stream: bool = Field(False, description="Send the text as it is written, as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    best_of: int | None = Field(None, description="Only as many as `n`: no choice is thrown away.")
    echo: bool = Field(
        False, description="Put the prompt before the text, and its log probabilities before those of the text."
    )
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

    @model_validator(mode="after")
    def _echo_tells_the_prompt(self) -> Self:
        if self.echoes_logprobs and self.stream:
            raise wrong_field("echo", "with 'logprobs' is told with a whole completion only; leave out 'stream'")
        if self.prompt_logprobs is not None and len(self.prompts) > 1:
            raise wrong_field("prompt_logprobs", f"takes one prompt, not {len(self.prompts)}; 'echo' takes several")
        if self.echoes_logprobs and self.prompt_logprobs is not None:
            raise wrong_field("prompt_logprobs", "is what 'echo' with 'logprobs' tells; leave it out")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each by itself, also where one came without a list around it."""
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            return self.prompt
        return [self.prompt]  # type: ignore[list-item]  # and what does is one prompt

    @property
    def echoes_logprobs(self) -> bool:
        """Whether the prompt's log probabilities are told before those of the text."""
        return self.echo and self.logprobs is not None

    @property
    def includes_usage(self) -> bool:
        """Whether the chunks of a stream carry `usage`, null in all but the last."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, bad_words: Iterable[tuple[int, ...]]) -> Sampling:
        """As of a job; an echo may need what the model thinks of the prompt."""
        sampling = super().sampling(bad_words)
        return sampling.model_copy(update={"prompt_logprobs": self.logprobs}) if self.echoes_logprobs else sampling


class CompletionLogprobs(BaseModel):
    """Log probabilities, one entry per token in each list."""

    tokens: list[str] = Field(description="The text of each token.")
    token_logprobs: list[float | None] = Field(description="Its log probability; null for the first of an echo.")
    top_logprobs: list[dict[str, float] | None] | None = Field(
        description="The likeliest others, text to log probability; null for the first of an echo."
    )
    text_offset: list[int] = Field(description="Where its text begins in `text`.")


class Choice(BaseModel):
    """One of the completion's texts."""

    index: int = Field(0, description="Which one, from 0; those of the first prompt come first.")
    text: str = Field("", description="The text; in a chunk, the next piece of it.")
    logprobs: CompletionLogprobs | None = Field(None, description="When the request asked for them.")
    finish_reason: Literal["stop", "length"] | None = Field(
        None, description="`stop`: end of sequence or a stop text; `length`: max_tokens."
    )


class Completion(BaseModel):
    """A completion, or a chunk of a streamed one."""

    id: str = Field(
        description="Its id; GET /v1/jobs/job_... with the same digits shows the job behind it, of several the first."
    )
    object: Literal["text_completion"] = Field("text_completion", description="Always `text_completion`.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="The model it ran on.")
    choices: list[Choice] = Field(
        description="As many as `n`, for each prompt; in a chunk one, or none beside the usage."
    )
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
