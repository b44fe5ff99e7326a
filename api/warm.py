"""Reads the tokenizer of every model as soon as a worker registers, so that the first submit need not wait for it."""

import asyncio
import logging

from api.errors import ApiError
from api.services import Services
from api.texts import MAX_MODELS
from db import workers

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


async def keep_warm(services: Services) -> None:
    """Look for new models until cancelled. A tokenizer that cannot be read is left to the submits that need it."""
    seen: set[str] = set()
    while True:
        try:
            async with services.autocommit() as session:
                cards = await workers.live(session, services.settings.lease_seconds)
        except Exception as error:  # whatever it is, submits go on without a warm tokenizer
            log.debug("cannot look for models", extra={"error": str(error)})
            cards = []
        for card in cards:
            if card.tokenizer_path not in seen and len(seen) < MAX_MODELS:  # more would only push each other out
                seen.add(card.tokenizer_path)
                try:
                    await services.texts.tokenizer(card)
                except ApiError:  # told where it was raised
                    continue
                log.info("tokenizer read", extra={"model": card.model})
        await asyncio.sleep(LOOK_SECONDS)
