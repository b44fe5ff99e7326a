"""/docs and /openapi.json: the API's reference, served from this process alone, with examples that run as they are."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError

from api.examples import MODEL
from api.models import load_models
from api.reference import make_reference
from api.services import Services, ServicesDep

ASSETS = Path(str(files("fastapi_offline"))) / "static"  # Swagger UI, so that /docs needs no other host
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Ccircle cx='8' cy='8' r='7' fill='%23236a8c'/%3E"
    "%3Cpath d='M2 9q3-3 6 0t6 0' stroke='white' fill='none'/%3E%3C/svg%3E"
)
EXAMPLE_HOST = "http://127.0.0.1:8000"
SUMMARY = "Asynchronous inference for language models: nothing lost, nobody starved."
DESCRIPTION = """
Submit a generation, get an id, come back for the text: by polling, by a token stream that survives every crash, or by
a signed webhook. Press **Authorize**, paste the key that `make run` printed (it is in `.headrace/api-key`), and every
example below runs as it is.

```sh
curl -s http://127.0.0.1:8000/v1/jobs -H "Authorization: Bearer $HEADRACE_API_KEY" \\
     -H "Content-Type: application/json" \\
     -d '{"model": "MODEL", "prompt": "The best thing about rivers is", "max_tokens": 32}'
```

* **A job is kept** once it is accepted, and reaches exactly one end: `succeeded`, `failed`, `cancelled`, `expired` or
  `dead`. Each end is readable here and sends one webhook event.
* **Errors** have one shape, `{"error": {"message", "type", "param", "code"}}`; every reply has an `x-request-id`.
* **Keys** have scopes: `read` looks, `submit` sends work and takes it back, `admin` manages webhook endpoints. They may
  have limits: requests and tokens a minute, and jobs at once. Replies to submits then have `x-ratelimit-*` headers.
* **OpenAI clients** work unchanged with the base URL `/v1` of this server.
"""
TAGS = [
    {"name": "Jobs", "description": "Submit, look, wait, stream, cancel, replay. `high` before `normal` before `low`."},
    {"name": "OpenAI", "description": "The same jobs for OpenAI clients."},
    {"name": "Files and batches", "description": "Many requests in a file, run when there is room."},
    {"name": "Queues and models", "description": "What is served, and how much waits."},
    {"name": "Webhooks", "description": "Where your events go, what became of them, and sending them again."},
    {"name": "Health", "description": "For schedulers and dashboards; no key needed."},
]
UI_PARAMETERS = {
    "persistAuthorization": True,
    "tryItOutEnabled": True,
    "displayRequestDuration": True,
    "docExpansion": "list",
    "defaultModelsExpandDepth": 0,
}


def add_docs(app: FastAPI) -> None:
    """Serve the reference under /docs, and send visitors of / there."""
    app.mount("/docs/assets", StaticFiles(directory=ASSETS), name="docs-assets")

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        base = request.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{base}/openapi.json",
            title="Headrace API",
            swagger_js_url=f"{base}/docs/assets/swagger-ui-bundle.js",
            swagger_css_url=f"{base}/docs/assets/swagger-ui.css",
            swagger_favicon_url=ICON,
            swagger_ui_parameters=UI_PARAMETERS,
        )

    reference = cache(lambda: make_reference(app))  # when every route is there

    @app.get("/openapi.json", include_in_schema=False)
    async def schema(services: ServicesDep, request: Request) -> Response:
        """The schema with the address it was asked at, and a served model's name, in its examples."""
        name = await services.example_models.get(None, lambda: _example_model(services)) or MODEL
        base = json.dumps(str(request.base_url).rstrip("/"))[1:-1]
        text = re.sub(rf"\b{MODEL}\b", name, reference().replace(EXAMPLE_HOST, base))
        return Response(text, media_type="application/json")


async def _example_model(services: Services) -> str | None:
    try:
        models = await load_models(services)
    except SQLAlchemyError:  # the reference is worth reading while the stores are away
        return None
    return models[0].id if models else None
