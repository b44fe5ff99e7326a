"""Fields that a job and an OpenAI completion have in common, with their ranges and their meaning."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from db.sampling import Sampling

INT64_MAX = 2**63 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_METADATA_PAIRS = 16

Tier = Literal["high", "normal", "low"]
TIER_MEANING = "`high` before `normal` before `low`; a waiting job rises with time, so that none waits for ever."


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain the character U+0000, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain half of a surrogate pair") from None
    return text


def _http_url(url: str) -> str:
    try:
        TypeAdapter(AnyHttpUrl).validate_python(url)
    except ValidationError:
        raise ValueError("must be an http:// or https:// URL") from None
    return url


Text = Annotated[str, AfterValidator(_storable)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID, strict=True)]
# The length is checked first: after a function, pydantic would speak of items instead of characters.
StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS), AfterValidator(_storable)]
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_storable)]
MetadataValue = Annotated[str, StringConstraints(max_length=512), AfterValidator(_storable)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_storable)]
WebhookUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_storable), AfterValidator(_http_url)]


LEADING_FIELDS = ("model", "prompt", "messages", "max_tokens", "tier", "stream")


def _lead(schema: dict[str, Any]) -> None:
    """In the reference, put first what a newcomer needs first; pydantic would begin with the shared fields."""
    properties = schema["properties"]
    schema["properties"] = {name: properties[name] for name in LEADING_FIELDS if name in properties} | properties


class GenerationFields(BaseModel):
    """How tokens are chosen and when to stop. A field sent as null counts as not sent; an unknown one is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra=_lead)

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
        1.0, gt=0, le=10, description="Above 1, lowers the chance of tokens of prompt and output; 1 changes nothing."
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list, description="A text, or up to 16, that ends the output. It is not part of the output."
    )
    stop_token_ids: list[TokenId] = Field(
        default_factory=list, max_length=64, description="Token ids that end the output, beside the model's own."
    )
    ignore_eos: bool = Field(False, description="Go on after the model's end-of-sequence token: for benchmarks.")
    seed: int | None = Field(
        None,
        ge=-INT64_MAX - 1,
        le=INT64_MAX,
        description="Fixes the randomness: equal jobs with equal seeds write equal text. Drawn at submit if not sent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, however they were sent."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self, *, logprobs: int | None) -> Sampling:
        """The part of these fields that the engine reads."""
        shared = set(Sampling.model_fields) - {"stop", "logprobs"}
        return Sampling(**self.model_dump(include=shared), stop=self.stops, logprobs=logprobs)
