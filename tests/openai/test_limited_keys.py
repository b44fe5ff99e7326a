"""Keys with scopes and limits, as the official client meets them."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import redis
from sqlalchemy import Engine

from db.settings import Settings
from tests.api.hand_worker import HandWorker, make_card
from tests.api.limited_keys import make_key
from tests.api.serving import serve
from tests.checkpoints import tokenizer_json

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 7}


@pytest.fixture
async def url(settings: Settings, engine: Engine, redis_client: redis.Redis, tmp_path: Path) -> AsyncIterator[str]:
    """An API with a model that nobody computes."""
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json(512))
    HandWorker(engine, redis_client, make_card(str(path))).register()
    async with serve(settings) as address:
        yield f"{address}/v1"


async def test_a_key_that_only_reads_gets_a_permission_error(url: str, engine: Engine) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key=make_key(engine, "read")) as sdk:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await sdk.completions.create(**BODY)
        assert (refused.value.code, refused.value.type) == ("missing_scope", "permission_error")
        assert [model.id async for model in sdk.models.list()] == ["tiny"]


async def test_a_stream_tells_what_is_left_before_its_first_chunk(url: str, engine: Engine) -> None:
    key = make_key(engine, requests_per_minute=60, tokens_per_minute=6000)
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as sdk:
        reply = await sdk.completions.with_raw_response.create(**BODY, stream=True)
        told = {name: reply.headers[f"x-ratelimit-{name}"] for name in ("remaining-requests", "remaining-tokens")}
        assert told == {"remaining-requests": "59", "remaining-tokens": "5990"}
        assert reply.headers["x-ratelimit-reset-tokens"] == "100ms"
        await reply.parse().close()


async def test_a_key_at_its_limit_gets_a_rate_limit_error_that_says_when(url: str, engine: Engine) -> None:
    async with openai.AsyncOpenAI(
        base_url=url, api_key=make_key(engine, tokens_per_minute=10), max_retries=0, timeout=60
    ) as sdk:
        reply = await sdk.completions.with_raw_response.create(**BODY, stream=True)
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.completions.create(**BODY)
        assert refused.value.code == "rate_limit_exceeded"
        assert 50 < float(refused.value.response.headers["retry-after-ms"]) / 1000 <= 60
        await reply.parse().close()


async def test_the_client_does_not_repeat_what_can_never_be_let_in(url: str, engine: Engine) -> None:
    key = make_key(engine, tokens_per_minute=5)
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=2) as sdk:
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.completions.create(**BODY)
    assert refused.value.code == "request_too_large"
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
