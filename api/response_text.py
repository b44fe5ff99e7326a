"""What a response's text must look like: `text.format`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from api.constraint_fields import Schema, StructuredOutputFields
from api.fields import MetadataKey, MetadataValue, RequestObject, Text

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class PlainFormat(RequestObject):
    """Any text."""

    type: Literal["text"] = Field(description="Any text.")


class JsonObjectFormat(RequestObject):
    """Any JSON object."""

    type: Literal["json_object"] = Field(description="Any JSON object.")


class JsonSchemaFormat(RequestObject):
    """JSON that a schema allows."""

    type: Literal["json_schema"] = Field(description="JSON that `schema` allows.")
    name: MetadataKey = Field(description="What it is called.")
    description: Text | None = Field(None, description="Understood, and ignored.")
    json_schema: Schema = Field(alias="schema", description="The JSON Schema.")
    strict: bool | None = Field(None, description="Understood; the schema is always kept to the letter.")


def _format_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if kind in ("text", "json_object", "json_schema") else None


Format = Annotated[
    Annotated[PlainFormat, Tag("text")]
    | Annotated[JsonObjectFormat, Tag("json_object")]
    | Annotated[JsonSchemaFormat, Tag("json_schema")],
    Discriminator(_format_of, "wrong_type", "must have a type 'text', 'json_object' or 'json_schema'"),
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
        if isinstance(self.format, JsonSchemaFormat):
            return StructuredOutputFields(json_schema=self.format.json_schema)
        return None

    def answered(self) -> dict[str, Any]:
        """As the response repeats it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
