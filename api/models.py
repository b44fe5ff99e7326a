"""GET /v1/models: what is served, as OpenAI lists it, with what a client must know to use it."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.errors import ApiError
from api.schemas import error_replies
from api.services import Services, ServicesDep
from db import workers
from db.models import Worker

router = APIRouter(tags=["Queues and models"])


class Model(BaseModel):
    """A model that jobs can be sent to."""

    id: str = Field(description="Its name in `model` fields.", examples=["MODEL"])
    object: Literal["model"] = Field("model", description="Always `model`.")
    created: int = Field(description="Unix time at which the worker that serves it started.")
    owned_by: str = Field("headrace", description="Always `headrace`.")
    status: Literal["ready", "loading", "offline"] = Field(
        description="`loading` and `offline` models take jobs too; they wait until a worker is ready."
    )
    num_workers: int = Field(description="Engine workers with a live lease.", examples=[1])
    max_model_len: int = Field(description="Longest prompt and output together, in tokens.", examples=[2048])
    has_chat_template: bool = Field(description="Whether it takes `messages`.")


class ModelList(BaseModel):
    """The models."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[Model] = Field(description="The models, by name.")


@router.get("/v1/models", summary="List models", response_description="The models.", responses=error_replies(401, 503))
async def list_models(services: ServicesDep, caller: CallerDep) -> ModelList:
    """The models that engine workers serve or have served."""
    return ModelList(data=await load_models(services))


@router.get(
    "/v1/models/{model:path}",
    summary="Get a model",
    response_description="The model.",
    responses=error_replies(401, 404, 503),
)
async def get_model(
    services: ServicesDep, caller: CallerDep, model: Annotated[str, Path(description="Its name.", examples=["MODEL"])]
) -> Model:
    """One of the models."""
    for each in await load_models(services):
        if each.id == model:
            return each
    raise ApiError(404, f"The model '{model}' is not served here.", code="model_not_found", param="model")


async def load_models(services: Services) -> list[Model]:
    """Every model with a worker's card, by name."""
    async with services.autocommit() as session:
        cards = await workers.models(session)
        live = await workers.live(session, services.settings.lease_seconds)
    by_name = {card.model: card for card in cards}
    return [_model(by_name[name], [worker for worker in live if worker.model == name]) for name in sorted(by_name)]


def _model(card: Worker, live: list[Worker]) -> Model:
    statuses = {worker.status for worker in live}
    status = "ready" if "ready" in statuses else "loading" if "loading" in statuses else "offline"
    return Model.model_validate(
        {
            "id": card.model,
            "created": int(card.started_at.timestamp()),
            "status": status,
            "num_workers": len(live),
            "max_model_len": card.max_model_len,
            "has_chat_template": card.chat_template is not None,
        }
    )
