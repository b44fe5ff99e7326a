"""What a response's text must look like: `text.format`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from api.constraint_fields import StructuredOutputFields
from api.fields import ALLOWED, NAMED, ONE, MetadataValue, RequestObject
from api.format_fields import ANY_OBJECT, JsonObjectFormat, JsonSchema, TextFormat, format_branch


class FlatSchemaFormat(JsonSchema):
    """JSON that a schema allows."""

    type: Literal["json_schema"] = Field(description="Always `json_schema`.")


Format = Annotated[
    Annotated[TextFormat, Tag(ONE)]
    | Annotated[JsonObjectFormat, Tag(NAMED)]
    | Annotated[FlatSchemaFormat, Tag(ALLOWED)],
    Discriminator(
        format_branch, "wrong_type", "must be an object whose 'type' is 'text', 'json_object' or 'json_schema'"
    ),
]


class TextOptions(RequestObject):
    """How the text is to be."""

    format: Format | None = Field(None, description="What it must be.")
    verbosity: MetadataValue | None = Field(None, description="Understood, and ignored.")

    @property
    def structured_output(self) -> StructuredOutputFields | None:
        """The same as a job has it."""
        if isinstance(self.format, JsonObjectFormat):
            return StructuredOutputFields(json_schema=ANY_OBJECT)
        if isinstance(self.format, FlatSchemaFormat):
            return StructuredOutputFields(json_schema=self.format.schema_ or ANY_OBJECT)
        return None

    def answered(self) -> dict[str, Any]:
        """As the response repeats it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
