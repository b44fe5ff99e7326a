"""The HTTP application: `uvicorn --factory api.app:create_app`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from api import docs, events, health, jobs, models, queues, replays, tokenize
from api.auth import AuthMiddleware
from api.batches import routes as batches
from api.body_limit import BodyLimitMiddleware
from api.chat import routes as chat
from api.completions import routes as completions
from api.embeddings import routes as embeddings
from api.errors import add_error_handlers
from api.files import routes as files
from api.metrics import Metrics
from api.request_id import RequestIdMiddleware
from api.responses import input_routes as response_inputs
from api.responses import routes as responses
from api.services import open_services
from api.warm import keep_warm
from api.webhooks import deliveries
from api.webhooks import endpoints as webhook_endpoints
from api.webhooks import events as webhook_events
from api.webhooks import secret as webhook_secret
from db.settings import Settings, get_settings

# Their order at /docs; but one path of `response_inputs` reads like an id to `responses`.
ROUTERS = (
    jobs,
    replays,
    events,
    response_inputs,
    responses,
    chat,
    completions,
    embeddings,
    files,
    batches,
    queues,
    models,
    tokenize,
    webhook_endpoints,
    webhook_events,
    webhook_secret,
    deliveries,
    health,
)

log = logging.getLogger(__name__)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application for these settings (the process's own by default). It connects when it starts to serve."""
    settings = settings or get_settings()
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, metrics) as services:
            app.state.services = services
            warming = asyncio.create_task(keep_warm(services))
            log.info("api ready")
            yield
            warming.cancel()

    app = FastAPI(
        title="Headrace",
        summary=docs.SUMMARY,
        description=docs.DESCRIPTION,
        version=version("headrace"),
        openapi_tags=docs.TAGS,
        openapi_url=None,  # `api.docs` serves it, with the served model's name in the examples
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        strict_content_type=False,  # a body without a Content-Type is taken as JSON
    )
    add_error_handlers(app)
    for module in ROUTERS:
        app.include_router(module.router)
    docs.add_docs(app)
    app.add_middleware(BodyLimitMiddleware)  # the last one added comes first
    app.add_middleware(AuthMiddleware)
    app.add_middleware(RequestIdMiddleware, metrics=metrics)
    return app
