"""What goes in and out of POST /v1/embeddings, as OpenAI spells it."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from api.fields import EmbeddingInput, MetadataValue, only
from api.job_fields import JobFields

# A language model's vector cut short is no shorter vector of the same text: only some models are trained for that.
NoDimensions = Annotated[int, only(None, "is not supported; a model's vectors have one size, its hidden size")]


class EmbeddingCreate(JobFields):
    """An OpenAI embeddings request, with a few fields of our own; it fails when one of its jobs does."""

    input: EmbeddingInput = Field(
        description="A text, or its token ids; or a list of up to 2,048 of these, each of which is a job of its own."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="`base64`: the vector's bytes, 32-bit floats, little-endian. The OpenAI clients decode it."
    )
    dimensions: NoDimensions | None = Field(None, description="Only null.")
    user: MetadataValue | None = Field(None, description="Understood, and ignored.")

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
