"""Prompts to token ids: tokenizers and chat templates, each read once and kept."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from api.cache import TtlCache
from api.errors import ApiError
from db.models import Worker
from workers.text.chat_template import ChatTemplate
from workers.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

KEEP_SECONDS = 24 * 3600
MAX_MODELS = 8
INLINE_CHARACTERS = 4_000  # about a millisecond of encoding; longer texts go to a thread and leave the event loop free
MAX_LONG_ENCODINGS = 2  # at once: each takes a core, and memory many times its text


class Texts:
    """Encodes and renders for the models that workers serve."""

    def __init__(self) -> None:
        self._tokenizers: TtlCache[str, Tokenizer] = TtlCache(KEEP_SECONDS, max_size=MAX_MODELS)
        self._templates: TtlCache[tuple[str, str | None, str | None], ChatTemplate] = TtlCache(
            KEEP_SECONDS, max_size=MAX_MODELS
        )
        self._long_encodings = asyncio.Semaphore(MAX_LONG_ENCODINGS)

    async def tokenizer(self, card: Worker) -> Tokenizer:
        """The model's tokenizer, or a 503. A large one takes seconds to read the first time: see `api.warm`."""
        path = card.tokenizer_path
        try:
            return await self._tokenizers.get(path, lambda: asyncio.to_thread(_load, path))
        except ValueError as error:
            log.warning("tokenizer not readable", extra={"model": card.model, "error": str(error)})
            message = (
                f"The API cannot read the tokenizer of '{card.model}' at '{path}'. It is the worker's file; the API's "
                "host must have it at the same path. Nothing was queued."
            )
            raise ApiError(503, message, code="tokenizer_unavailable") from error

    async def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """The token ids of `text` with the model's beginning-of-sequence token."""
        if len(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text)
        async with self._long_encodings:
            return await asyncio.to_thread(tokenizer.encode, text)

    async def render(
        self,
        card: Worker,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the model's chat template makes of `messages`. Raises ChatTemplateError."""
        assert card.chat_template is not None
        key = (card.chat_template, card.bos_token, card.eos_token)
        template = await self._templates.get(key, lambda: asyncio.to_thread(ChatTemplate, *key))
        return await asyncio.to_thread(template.render, messages, tools=tools, variables=variables)


def _load(path: str) -> Tokenizer:
    tokenizer = Tokenizer.load(path)
    _ = tokenizer.longest_token_bytes  # computed once, here, where it delays no submit
    return tokenizer
