"""Fields that OpenAI's endpoints have in common."""

from typing import Annotated, Any, Literal

from fastapi import Header
from pydantic import Field, model_validator

from api.fields import RequestObject, Tier, wrong_field

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
UsedTier = Literal["priority", "default", "flex"]
TIER_OF: dict[str, Tier] = {
    "priority": "high",
    "fast": "high",
    "ultrafast": "high",
    "auto": "normal",
    "default": "normal",
    "scale": "normal",
    "flex": "low",
}
USED_TIERS: tuple[UsedTier, ...] = ("priority", "default", "flex")  # by the level of a job's tier

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="As for a job. It then also goes on when the client leaves."),
]


class StreamOptions(RequestObject):
    """How a stream is told."""

    include_usage: bool = Field(False, description="Send a last chunk with the usage.")
    include_obfuscation: bool = Field(False, description="Understood, and ignored.")
    continuous_usage_stats: bool = Field(False, description="vLLM's. Understood, and ignored.")


class ServiceTierField(RequestObject):
    """OpenAI's name for the tier."""

    service_tier: ServiceTier | None = Field(
        None,
        description="`priority`, `fast`, `ultrafast`: tier `high`; `auto`, `default`, `scale`: `normal`; `flex`: `low`."
        " Instead of `tier`; the answer names the one that was used.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_tier(cls, data: Any) -> Any:
        name = data.get("service_tier") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in TIER_OF:
            return data  # not sent, or wrong: its own check says so
        wanted = TIER_OF[name]
        if data.get("tier") not in (None, wanted):
            raise wrong_field("service_tier", f"stands for the tier '{wanted}', and 'tier' says another; send one")
        return data | {"tier": wanted}
