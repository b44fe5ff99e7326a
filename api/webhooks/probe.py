"""A test of a webhook endpoint: sent by the tasks worker, like every event, while the client waits for the answer."""

import asyncio
from uuid import UUID

from api.errors import NO_RETRY, ApiError, invalid
from api.services import Services
from db import webhook_log, webhook_replays
from db.models import WebhookAttempt, WebhookEndpoint

LOOK_SECONDS = 0.2
SPARE_SECONDS = 10.0  # beyond what an attempt may take: until a tasks worker takes it up, and has noted it


async def send_test(services: Services, endpoint: WebhookEndpoint, event_type: str) -> int:
    """The status code that the endpoint answered. Refuses when it did not answer, or nobody sent the test."""
    async with services.sessions() as session, session.begin():
        delivery_id = await webhook_replays.add_test(session, endpoint, event_type)
    patience = services.settings.webhook_timeout_seconds + SPARE_SECONDS
    try:
        async with asyncio.timeout(patience):
            attempt = await _attempt(services, delivery_id)
    except TimeoutError:
        async with services.autocommit() as session:
            await webhook_replays.give_up_test(session, delivery_id)
        raise ApiError(
            504,
            f"No tasks worker has sent the test within {patience:g} s: is one running?",
            code="webhook_not_sent",
            headers=NO_RETRY,
        ) from None
    if attempt.status_code is None:
        raise invalid(f"The endpoint did not answer: {attempt.error}.", param=None, code="webhook_endpoint_unreachable")
    return attempt.status_code


async def _attempt(services: Services, delivery_id: UUID) -> WebhookAttempt:
    while True:
        async with services.autocommit() as session:
            attempt = await webhook_log.last_attempt(session, delivery_id)
        if attempt is not None:
            return attempt
        await asyncio.sleep(LOOK_SECONDS)
