"""What a job and an OpenAI completion have in common: how tokens are chosen, when it stops, what belongs to the job."""

from collections.abc import Iterable

from pydantic import Field

from api.choice_fields import ChoiceFields
from api.constraint_fields import MAX_BIASES, BadWords, LogitBias, StructuredOutputFields
from api.fields import (
    INT64_MAX,
    MAX_LOGPROBS,
    MAX_TOKEN_ID,
    Metadata,
    Stop,
    TokenId,
    WebhookUrl,
)
from api.job_fields import JobFields
from db.sampling import Sampling

MAX_RUN_SECONDS = 7 * 24 * 3600.0


class GenerationFields(ChoiceFields, JobFields):
    """A field sent as null counts as not sent; an unknown one is refused."""

    temperature: float = Field(
        1.0, ge=0, le=100, description="How evenly tokens are drawn; 0 always takes the most likely one."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Draw from the most likely tokens that together have this share.")
    top_k: int = Field(0, ge=0, le=MAX_TOKEN_ID, description="Draw from this many most likely tokens; 0 from all.")
    min_p: float = Field(
        0.0, ge=0, le=1, description="Leave out tokens less likely than this share of the likeliest one's probability."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2, le=2, description="Lowers a token's chance by how often it is in the output already."
    )
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="Lowers a token's chance once it is in the output.")
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=10, description="Above 1, lowers the chance of tokens of prompt and output; 1 changes nothing."
    )
    stop: Stop = Field(
        default_factory=list, description="A text, or up to 16, that ends the output. It is not part of the output."
    )
    stop_token_ids: list[TokenId] = Field(
        default_factory=list,
        max_length=64,
        fail_fast=True,
        description="Token ids that end the output, beside the model's own.",
    )
    ignore_eos: bool = Field(False, description="Go on after the model's end-of-sequence token: for benchmarks.")
    seed: int | None = Field(
        None,
        ge=-INT64_MAX - 1,
        le=INT64_MAX,
        json_schema_extra={"format": "int64"},
        description="Fixes the randomness: equal jobs with equal seeds write equal text. Drawn at submit if not sent.",
    )
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Report each token's log probability and that of so many alternatives."
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="The same of each token of the prompt but the first. Its whole prompt is then computed.",
    )
    logit_bias: LogitBias = Field(
        default_factory=dict,
        max_length=MAX_BIASES,
        description="Token id to a number from -100 to 100 that is added to its logit; -100 all but forbids it.",
        examples=[{"50256": -100}],
    )
    min_tokens: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="No end-of-sequence or stop token comes before so many tokens; `stop` texts still end the output.",
    )
    bad_words: BadWords = Field(
        default_factory=list,
        description="Texts that the output never completes, at its beginning and after a space; or lists of token ids.",
    )
    structured_output: StructuredOutputFields | None = Field(
        None, description="What the output must follow: a JSON Schema, a regular expression, choices or a grammar."
    )
    webhook_url: WebhookUrl | None = Field(
        None, description="Receives one signed event (Standard Webhooks) when the job ends, however it ends."
    )
    metadata: Metadata = Field(
        default_factory=dict, description="Up to 16 pairs of your own, returned with the job and usable as filters."
    )
    run_for: float | None = Field(
        None, gt=0, le=MAX_RUN_SECONDS, description="Seconds from the first start; past them the job ends as `expired`."
    )

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def structure_param(self) -> str:
        """The field that says what the output must follow."""
        return (
            "structured_output"
            if self.structured_output is None
            else f"structured_output.{self.structured_output.kind}"
        )

    def sampling(self, bad_words: Iterable[tuple[int, ...]]) -> Sampling:
        """The part of these fields that the engine reads, with `bad_words` as token ids."""
        same = set(Sampling.model_fields) - {"stop", "bad_words", "structured_output"}
        return Sampling(
            **self.model_dump(include=same),
            stop=self.stops,
            bad_words=tuple(bad_words),
            structured_output=None if self.structured_output is None else self.structured_output.output(),
        )
