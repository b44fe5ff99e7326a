"""The jobs of a storm: few kinds, each run once before it in peace, so that every text is known."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.world import KEY, MODEL

WORDS = ("The mill", "Water comes", "Every sack", "Der Müller", "été 0 1 2", "def mill")
LENGTHS = (24, 150, 400)
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Recipe:
    """A body of POST /v1/jobs, with what an undisturbed run wrote."""

    number: int
    body: dict[str, Any]
    token_ids: list[int] = field(default_factory=list)
    text: str = ""


def make_recipes() -> list[Recipe]:
    """Greedy and seeded, short and long, with penalties, log probabilities and a text that stops."""
    bodies: list[dict[str, Any]] = []
    for index, words in enumerate(WORDS):
        body = {"model": MODEL, "prompt": words, "max_tokens": LENGTHS[index % len(LENGTHS)], "ignore_eos": True}
        bodies.append(body | {"temperature": 0})
        bodies.append(body | {"temperature": 0.9, "seed": index, "max_tokens": LENGTHS[(index + 1) % len(LENGTHS)]})
    bodies[0] |= {"logprobs": 2}
    bodies[2] |= {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1}
    bodies[4] |= {"stop": ["w499", "w500", "w501"]}
    return [Recipe(number, body) for number, body in enumerate(bodies)]


async def taste(url: str, recipes: list[Recipe]) -> list[Recipe]:
    """Run every recipe once, and return them with what came out."""
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENCE_SECONDS + 5
    ) as client:
        return list(await asyncio.gather(*(_taste_one(client, recipe) for recipe in recipes)))


async def _taste_one(client: httpx.AsyncClient, recipe: Recipe) -> Recipe:
    created = (await client.post("/v1/jobs", json=recipe.body)).raise_for_status().json()
    wait = {"Prefer": f"wait={PATIENCE_SECONDS}"}
    job = (await client.get(f"/v1/jobs/{created['id']}", headers=wait)).raise_for_status().json()
    assert job["status"] == "succeeded", job
    return Recipe(recipe.number, recipe.body, job["output"]["token_ids"], job["output"]["text"])
