"""Prompts to token ids: tokenizers and chat templates, each read once and kept."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from api.cache import TtlCache
from db.models import Worker
from workers.text.chat_template import ChatTemplate
from workers.text.tokenizer import Tokenizer

KEEP_SECONDS = 24 * 3600
MAX_MODELS = 8
INLINE_CHARACTERS = 4_000  # about a millisecond of encoding; longer texts go to a thread and leave the event loop free


class Texts:
    """Encodes and renders for the models that workers serve."""

    def __init__(self) -> None:
        self._tokenizers: TtlCache[str, Tokenizer] = TtlCache(KEEP_SECONDS, max_size=MAX_MODELS)
        self._templates: TtlCache[tuple[str, str | None, str | None], ChatTemplate] = TtlCache(
            KEEP_SECONDS, max_size=MAX_MODELS
        )

    async def tokenizer(self, card: Worker) -> Tokenizer:
        """The model's tokenizer. A large one takes a second to read the first time."""
        path = card.tokenizer_path
        return await self._tokenizers.get(path, lambda: asyncio.to_thread(Tokenizer.load, path))

    async def encode(self, card: Worker, text: str) -> list[int]:
        """The token ids of `text` with the model's beginning-of-sequence token."""
        tokenizer = await self.tokenizer(card)
        if len(text) <= INLINE_CHARACTERS:
            return tokenizer.encode(text)
        return await asyncio.to_thread(tokenizer.encode, text)

    async def render(self, card: Worker, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that the model's chat template makes of `messages`. Raises ChatTemplateError."""
        assert card.chat_template is not None
        key = (card.chat_template, card.bos_token, card.eos_token)
        template = await self._templates.get(key, lambda: asyncio.to_thread(ChatTemplate, *key))
        return await asyncio.to_thread(template.render, messages)
