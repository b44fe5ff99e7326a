"""The types of the fields that clients send, with their limits.

What is refused costs little, whatever its size: lists and objects are bounded before they are looked at, and a list is
read up to its first error.
"""

import re
from collections.abc import Sized
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from db.settings import get_settings
from db.webhook_url import UrlRefused, check_public, parse_url

INT64_MAX = 2**63 - 1
MAX_TOKEN_ID = 2**31 - 1
MAX_STOPS = 16
MAX_INPUTS = 2048  # texts of one embeddings request, as at OpenAI
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_STRUCTURE_CHARACTERS = 64 * 1024  # of what an output must follow
MAX_METADATA_PAIRS = 16
MAX_OBJECT_FIELDS = 64  # of any object in a request; none has that many
MAX_ITEMS = 2**20  # of any list
MAX_PROMPTS = 128

# Branches of a field that takes one or several. pydantic puts them into the place of an error; clients know none.
ONE, SEVERAL, PROMPTS, NAMED, ALLOWED = MARKS = ("<one>", "<several>", "<prompts>", "<named>", "<allowed>")
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)

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
        parsed = parse_url(url)
        if not get_settings().webhook_allow_private:
            check_public(parsed)
    except UrlRefused as refusal:
        raise ValueError(str(refusal)) from None
    return url


def _rfc_3339(value: Any) -> Any:
    if not isinstance(value, str) or not RFC_3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 time with its offset, such as 2026-01-31T18:00:00Z")
    return value


def _few_pairs(value: Any) -> Any:
    if isinstance(value, Sized) and len(value) > MAX_METADATA_PAIRS:
        raise ValueError(f"must have at most {MAX_METADATA_PAIRS} pairs, not {len(value):,}")
    return value


def _branch(value: Any) -> str | None:
    return ONE if isinstance(value, str) else SEVERAL if isinstance(value, list) else None


def _prompt_branch(value: Any) -> str | None:
    is_nested = isinstance(value, list) and bool(value) and isinstance(value[0], (str, list))
    return PROMPTS if is_nested else _branch(value)


def wrong_field(param: str, message: str) -> PydanticCustomError:
    """What a validator of a whole body raises about one of its fields."""
    return PydanticCustomError("wrong_field", message, {"param": param})


def only(allowed: Any, message: str) -> BeforeValidator:
    """Refuses, whatever its type, all but the one value that a field of OpenAI's may have here."""

    def check(value: Any) -> Any:
        if value != allowed:
            raise ValueError(message)
        return value

    return BeforeValidator(check)


class RequestObject(BaseModel):
    """An object in a request. Unknown fields are refused, and too many fields before any is looked at."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_OBJECT_FIELDS:
            raise ValueError(f"The object has {len(data):,} fields; at most {MAX_OBJECT_FIELDS} are taken")
        return data


Text = Annotated[str, AfterValidator(_storable)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID, strict=True)]
# The length is checked first: after a function, pydantic would speak of items instead of characters.
StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS), AfterValidator(_storable)]
StructureText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_STRUCTURE_CHARACTERS), AfterValidator(_storable)
]
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_storable)]
MetadataValue = Annotated[str, StringConstraints(max_length=512), AfterValidator(_storable)]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue], BeforeValidator(_few_pairs), Field(max_length=MAX_METADATA_PAIRS)
]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_storable)]
EndpointName = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_storable)]
WebhookUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_storable), AfterValidator(_http_url)]
Moment = Annotated[AwareDatetime, BeforeValidator(_rfc_3339)]

TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_ITEMS)]
Prompt = Annotated[
    Annotated[Text, Tag(ONE)] | Annotated[TokenIds, Tag(SEVERAL)],
    Discriminator(_branch, "wrong_type", "must be a text or a list of token ids"),
]
OpenAIPrompt = Annotated[
    Annotated[Text, Tag(ONE)]
    | Annotated[TokenIds, Tag(SEVERAL)]
    | Annotated[list[Prompt], Field(fail_fast=True, max_length=MAX_PROMPTS), Tag(PROMPTS)],
    Discriminator(_prompt_branch, "wrong_type", "must be a text, a list of token ids, or a list of such prompts"),
]
EmbeddingInput = Annotated[
    Annotated[Text, Tag(ONE)]
    | Annotated[TokenIds, Tag(SEVERAL)]
    | Annotated[list[Prompt], Field(fail_fast=True, max_length=MAX_INPUTS), Tag(PROMPTS)],
    Discriminator(_prompt_branch, "wrong_type", "must be a text, a list of token ids, or a list of these"),
]
Stop = Annotated[
    Annotated[StopString, Tag(ONE)]
    | Annotated[list[StopString], Field(fail_fast=True, max_length=MAX_STOPS), Tag(SEVERAL)],
    Discriminator(_branch, "wrong_type", "must be a text or a list of texts"),
]


class TextPart(RequestObject):
    """A piece of a message's content, as the OpenAI chat API spells it."""

    type: Literal["text"] = Field(description="Only text is understood.")
    text: Text = Field(description="The text.")


Content = Annotated[
    Annotated[Text, Tag(ONE)] | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_ITEMS), Tag(SEVERAL)],
    Discriminator(_branch, "wrong_type", "must be a text or a list of text parts"),
]
