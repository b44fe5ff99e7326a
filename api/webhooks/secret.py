"""The secret of a tenant that signs what goes to the `webhook_url` of its jobs. Endpoints have secrets of their own."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field

from api.auth import CallerDep
from api.errors import ApiError, invalid
from api.schemas import error_replies
from api.services import ServicesDep
from api.webhooks.schemas import RotateSecret
from db import webhook_endpoints
from db.models import WebhookEndpoint
from db.webhook_endpoints import TooManySecrets
from db.webhook_secret import hint_of

router = APIRouter(tags=["Webhooks"])


class WebhookSecret(BaseModel):
    """What signs the webhooks of jobs with a `webhook_url`."""

    object: Literal["webhook_secret"] = Field("webhook_secret", description="Always `webhook_secret`.")
    updated_at: int = Field(description="When it was made, in Unix seconds.")
    signing_secret_hint: str = Field(description="Its end.", examples=["whsec_...9PbQ"])
    old_secrets_expire_at: list[int] = Field(description="When each rotated secret stops to sign, in Unix seconds.")


class NewWebhookSecret(WebhookSecret):
    """The secret itself, which is told this once."""

    signing_secret: str = Field(description="What verifies the webhooks. It is not shown again.")


@router.get(
    "/v1/webhook_secret",
    summary="Look at the secret of webhook URLs",
    response_description="Which one it is.",
    responses=error_replies(401, 503),
)
async def get_webhook_secret(services: ServicesDep, caller: CallerDep) -> WebhookSecret:
    """The end of the secret that signs what goes to the `webhook_url` of jobs: enough to tell it from another one."""
    async with services.autocommit() as session:
        return WebhookSecret.model_validate(_view(await webhook_endpoints.of_jobs(session, caller.tenant)))


@router.post(
    "/v1/webhook_secret/rotate",
    summary="Rotate the secret of webhook URLs",
    response_description="The new secret.",
    responses=error_replies(400, 401, 408, 413, 503),
)
async def rotate_webhook_secret(
    services: ServicesDep, caller: CallerDep, body: Annotated[RotateSecret | None, Body()] = None
) -> NewWebhookSecret:
    """Draw a new secret for the `webhook_url` of jobs. The old one stops to sign at once, or in 24 hours.

    Until then each delivery is signed by both, and either signature verifies it. What is on its way is signed by the
    secrets of the moment at which it is sent.
    """
    keeps_old = body is not None and body.keep_old_secret_active_for_24_hours
    try:
        async with services.sessions() as session, session.begin():
            row = await webhook_endpoints.rotate_of_jobs(session, caller.tenant, keeps_old=keeps_old)
    except TooManySecrets as refusal:
        raise too_many_secrets(refusal) from None
    return NewWebhookSecret.model_validate(_view(row) | {"signing_secret": row.secret})


def too_many_secrets(refusal: TooManySecrets) -> ApiError:
    """The 400 for a rotation that would leave too many secrets active."""
    return invalid(
        f"{webhook_endpoints.MAX_OLD_SECRETS} old secrets are still active, the most there can be; the first ends "
        f"at {refusal.free_at.isoformat(timespec='seconds')}. Rotate without keeping the old ones, or later",
        param="keep_old_secret_active_for_24_hours",
    )


def expiries(row: WebhookEndpoint) -> list[int]:
    """When each old secret that signs still stops to, in Unix seconds."""
    ends = [datetime.fromisoformat(old["until"]) for old in row.old_secrets]
    return [int(end.timestamp()) for end in ends if end > datetime.now(UTC)]


def _view(row: WebhookEndpoint) -> dict[str, object]:
    return {
        "updated_at": int(row.updated_at.timestamp()),
        "signing_secret_hint": hint_of(row.secret),
        "old_secrets_expire_at": expiries(row),
    }
