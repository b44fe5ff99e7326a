"""client.models, and POST /v1/tokenize through the same client, from the unmodified `openai` package."""

import openai
import pytest


async def test_models_are_listed_by_name_and_found_by_it(sdk, make_worker) -> None:
    for name in ("tiny", "org/large model"):
        make_worker(model=name)
    page = await sdk.models.list()
    assert [model.id for model in page.data] == ["org/large model", "tiny"]
    assert [model.id async for model in sdk.models.list()] == ["org/large model", "tiny"]
    found = await sdk.models.retrieve("org/large model")
    assert (found.id, found.object, found.owned_by) == ("org/large model", "model", "headrace")
    assert found.created > 1_700_000_000 and found == page.data[0]
    assert found.max_model_len == 64 and found._request_id is not None  # what is ours passes through


async def test_a_model_that_is_not_served_is_not_found(sdk, make_worker) -> None:
    make_worker()
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.models.retrieve("other")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


async def test_a_list_without_models_is_empty(sdk) -> None:
    assert (await sdk.models.list()).data == []


async def test_a_wrong_key_lists_nothing(url: str, keys: tuple[str, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="hr_wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()


async def test_the_tokens_of_a_prompt_can_be_asked_for_by_a_plain_post(sdk, make_worker) -> None:
    make_worker()
    told = await sdk.post("/tokenize", body={"model": "tiny", "prompt": "the mill"}, cast_to=dict)
    assert told["count"] == len(told["token_ids"]) > 0
