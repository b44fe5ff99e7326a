"""What goes in and out of POST /v1/embeddings, as OpenAI spells it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from api.fields import (
    TIER_MEANING,
    EmbeddingInput,
    MetadataValue,
    ModelName,
    Moment,
    RequestObject,
    Tier,
    only,
    wrong_field,
)

# A language model's vector cut short is no shorter vector of the same text: only some models are trained for that.
NoDimensions = Annotated[int, only(None, "is not supported; a model's vectors have one size, its hidden size")]


class EmbeddingCreate(RequestObject):
    """An OpenAI embeddings request, with a few fields of our own. A field sent as null counts as not sent."""

    model: ModelName = Field(description="Name of a served model; GET /v1/models lists them.")
    input: EmbeddingInput = Field(
        description="A text, or its token ids; or a list of up to 2,048 of these, each of which is a job of its own."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="`base64`: the vector's bytes, 32-bit floats, little-endian. The OpenAI clients decode it."
    )
    dimensions: NoDimensions | None = Field(None, description="Only null.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")
    tier: Tier = Field("normal", description=TIER_MEANING)
    start_by: Moment | None = Field(
        None, description="RFC 3339 time with its offset; the request fails when a job of it has not started by then."
    )
    finish_by: Moment | None = Field(
        None, description="RFC 3339 time with its offset; the request fails when a job of it has not ended by then."
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _starts_before_it_finishes(self) -> Self:
        if self.start_by is not None and self.finish_by is not None and self.finish_by < self.start_by:
            raise wrong_field("finish_by", "is earlier than start_by")
        return self

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts and lists of token ids, however they were sent."""
        sent = self.input
        is_one = isinstance(sent, str) or not sent or isinstance(sent[0], int)
        return [sent] if is_one else sent  # type: ignore[list-item,return-value]  # its items were just looked at


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"] = Field("embedding", description="Always `embedding`.")
    index: int = Field(description="Which of the inputs, from 0.")
    embedding: list[float] | str = Field(description="Its vector, of length 1; a text in the format `base64`.")


class EmbeddingUsage(BaseModel):
    """Tokens counted."""

    prompt_tokens: int = Field(description="Tokens of all inputs.")
    total_tokens: int = Field(description="The same.")


class EmbeddingList(BaseModel):
    """The vectors, in the order of the inputs."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Embedding] = Field(description="One for each input.")
    model: str = Field(description="The model whose hidden states they are of.")
    usage: EmbeddingUsage = Field(description="Tokens of all inputs together.")
