"""The types of the fields that favour, forbid or prescribe tokens, with their limits.

As in `api.fields`, sizes are looked at first, and of many errors the first is told.
"""

import json
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from api.fields import (
    MAX_STRUCTURE_CHARACTERS,
    MAX_TOKEN_ID,
    ONE,
    SEVERAL,
    RequestObject,
    StopString,
    StructureText,
    TokenId,
)
from db.sampling import StructuredOutput

MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_SCHEMA_DEPTH = 100
MAX_CHOICES = 1024
KINDS = ("json_schema", "regex", "choice", "grammar")


def _biases(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and biases")
    if len(value) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES:,} token ids, not {len(value):,}")
    for token_id, bias in value.items():
        is_id = isinstance(token_id, str) and token_id.isascii() and token_id.isdecimal() and len(token_id) <= 10
        if not is_id or str(int(token_id)) != token_id or int(token_id) > MAX_TOKEN_ID:
            raise ValueError(f"'{str(token_id)[:40]}' is no token id; a key is a number from 0, in digits")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"the bias of {token_id} must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g}")
    return value


def check_json(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse an object that is nested too deeply, too long, or no JSON."""
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise ValueError(f"is nested more than {MAX_SCHEMA_DEPTH} deep")
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError:  # a number that JSON has not, or half of a surrogate pair
        raise ValueError("must be JSON: numbers that are finite, texts that are Unicode") from None
    _check_length(text)
    return schema


def _choices(choices: list[str]) -> list[str]:
    _check_length(json.dumps(choices, ensure_ascii=False))
    return choices


def _check_length(text: str) -> None:
    if len(text) > MAX_STRUCTURE_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters as JSON; at most {MAX_STRUCTURE_CHARACTERS:,} are taken")


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested deeper. Level by level, as recursion has a limit of its own."""
    level = [value]
    for _ in range(limit):
        lists = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [part for parts in lists for part in parts]
    return any(isinstance(each, dict | list) for each in level)


def _word_branch(value: Any) -> str | None:
    return ONE if isinstance(value, str) else SEVERAL if isinstance(value, list) else None


Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
LogitBias = Annotated[dict[str, Bias], BeforeValidator(_biases)]
BadWord = Annotated[
    Annotated[StopString, Tag(ONE)]
    | Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_BAD_WORD_TOKENS), Tag(SEVERAL)],
    Discriminator(_word_branch, "wrong_type", "must be a text or a list of token ids"),
]
BadWords = Annotated[list[BadWord], Field(fail_fast=True, max_length=MAX_BAD_WORDS)]
Schema = Annotated[dict[str, Any], AfterValidator(check_json)]
Choices = Annotated[
    list[StructureText], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES), AfterValidator(_choices)
]


class StructuredOutputFields(RequestObject):
    """What the output must follow, to the letter. Exactly one of these is sent."""

    json_schema: Schema | None = Field(
        None,
        description="The output is JSON that this JSON Schema allows.",
        examples=[{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}],
    )
    regex: StructureText | None = Field(
        None,
        description="All of the output matches this regular expression (Rust's, without look-around).",
        examples=["(yes|no), because [a-z ]{3,40}\\."],
    )
    choice: Choices | None = Field(
        None, description="The output is one of these texts.", examples=[["positive", "negative"]]
    )
    grammar: StructureText | None = Field(
        None,
        description="The output follows this grammar, as Lark writes it; its first rule is `start`.",
        examples=['start: "2 + 2 = " /[0-9]+/'],
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in KINDS) != 1:
            raise ValueError("send exactly one of 'json_schema', 'regex', 'choice' and 'grammar'")
        return self

    @property
    def kind(self) -> str:
        """The one that was sent."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    def output(self) -> StructuredOutput:
        """The same as it is stored."""
        if self.json_schema is not None:
            return StructuredOutput(kind="json_schema", text=json.dumps(self.json_schema))
        if self.choice is not None:
            return StructuredOutput(kind="choice", text=json.dumps(self.choice))
        if self.regex is not None:
            return StructuredOutput(kind="regex", text=self.regex)
        assert self.grammar is not None
        return StructuredOutput(kind="grammar", text=self.grammar)
