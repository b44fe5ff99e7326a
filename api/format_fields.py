"""What form an answer must have, as OpenAI's chat spells it."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from api.constraint_fields import Schema
from api.fields import ALLOWED, NAMED, ONE, RequestObject, Text

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MAX_DESCRIPTION = 16 * 1024  # characters


class TextFormat(RequestObject):
    """Any text."""

    type: Literal["text"] = Field(description="Always `text`.")


class JsonObjectFormat(RequestObject):
    """A JSON object."""

    type: Literal["json_object"] = Field(description="Always `json_object`.")


class JsonSchema(RequestObject):
    """A JSON Schema, with a name."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")] = Field(
        description="Letters, digits, `_` and `-`."
    )
    description: Annotated[Text, StringConstraints(max_length=MAX_DESCRIPTION)] | None = Field(
        None, description="Understood, and ignored."
    )
    schema_: Schema | None = Field(None, alias="schema", description="The schema. Default: any object.")
    strict: bool | None = Field(None, description="Understood: the answer follows the schema with or without it.")


class JsonSchemaFormat(RequestObject):
    """JSON that a schema allows."""

    type: Literal["json_schema"] = Field(description="Always `json_schema`.")
    json_schema: JsonSchema = Field(description="The schema.")


def format_branch(value: Any) -> str | None:
    """Which of the three forms a value is, by its type."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    marks = {"text": ONE, "json_object": NAMED, "json_schema": ALLOWED}
    return marks.get(kind) if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag(ONE)]
    | Annotated[JsonObjectFormat, Tag(NAMED)]
    | Annotated[JsonSchemaFormat, Tag(ALLOWED)],
    Discriminator(
        format_branch, "wrong_type", "must be an object whose 'type' is 'text', 'json_object' or 'json_schema'"
    ),
]


def schema_of(wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat | None) -> dict[str, Any] | None:
    """The JSON Schema that the answer must follow; None where it is free."""
    if isinstance(wanted, JsonSchemaFormat):
        return ANY_OBJECT if wanted.json_schema.schema_ is None else wanted.json_schema.schema_
    return ANY_OBJECT if isinstance(wanted, JsonObjectFormat) else None
