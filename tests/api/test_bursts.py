"""Many submits at once, more than there are connections to PostgreSQL."""

import asyncio

from tests.api.serving import api_with

BODY = {"model": "tiny", "prompt": [5, 6], "max_tokens": 8}


async def test_many_submits_with_keys_of_their_own_are_all_accepted(settings, keys, worker) -> None:
    async with api_with(settings) as client:
        replies = await asyncio.gather(
            *(client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": str(i)}) for i in range(40))
        )
    assert [reply.status_code for reply in replies] == [202] * 40
    assert len({reply.json()["id"] for reply in replies}) == 40


async def test_many_copies_of_one_submit_are_one_job(settings, keys, worker) -> None:
    async with api_with(settings) as client:
        copies = await asyncio.gather(
            *(client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k"}) for _ in range(50))
        )
        assert [reply.status_code for reply in copies] == [202] * 50
        assert len({reply.json()["id"] for reply in copies}) == 1
        assert len((await client.get("/v1/jobs")).json()["data"]) == 1
