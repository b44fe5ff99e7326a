"""Files and batches whose bytes are in an object store, where nothing can be added to what is there."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from api.metrics import Metrics
from api.services import open_services
from db import files
from db.file_store import FileStore
from db.models import Status
from tests.api.serving import serve
from tests.db.object_store import BUCKET, ObjectStore
from tests.openai.batch_world import BatchWorld, request


@pytest.fixture
def files_url(tmp_path) -> str:
    return f"objects://{BUCKET}/{tmp_path.name}"


@pytest.fixture
async def sdk(settings, keys, files_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serve(settings.model_copy(update={"files_url": files_url})) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=keys[0], max_retries=0) as sdk,
    ):
        yield sdk


async def test_the_output_of_a_batch_grows_and_is_an_object_in_the_end(
    settings, engine, worker, sdk, files_url
) -> None:
    changes = {"files_url": files_url, "batch_window": 4}
    async with open_services(settings.model_copy(update=changes), Metrics()) as services:
        world = BatchWorld(services, engine, sdk, worker)
        batch_id = await world.begin([request(f"r{i}") for i in range(6)])
        for number, job_id in enumerate(world.jobs(Status.QUEUED), 1):
            world.worker.run(job_id, " turns")
            await world.rounds()
            file_id = (await sdk.batches.retrieve(batch_id)).output_file_id
            assert len(await world.content(file_id)) == number
            assert (await sdk.files.retrieve(file_id)).bytes == len((await sdk.files.content(file_id)).content)
        batch = await world.run_to_end(batch_id)
        await world.runner.close()
    assert (batch.status, batch.request_counts.completed, len(await world.content(batch.output_file_id))) == (
        *("completed", 6),
        6,
    )
    kept = {path for path in ObjectStore.objects if path.startswith(files_url.partition("://")[2])}
    assert {path.rpartition("/")[2] for path in kept} == {
        file_id.removeprefix("file-") for file_id in (batch.input_file_id, batch.output_file_id)
    }
    for file_id in (batch.input_file_id, batch.output_file_id):
        await sdk.files.delete(file_id)
    assert not kept & ObjectStore.objects.keys()


@pytest.mark.parametrize("files_url", ["objects://away/x", "objects://nobody-made-it/x"])
async def test_an_upload_to_a_store_that_is_not_there_is_to_be_sent_again(sdk) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        await sdk.files.create(file=b"a", purpose="batch")
    assert (refused.value.status_code, refused.value.code) == (503, "file_store_unavailable")
    assert refused.value.response.headers["retry-after"]
    assert (await sdk.files.list()).data == []


async def test_an_upload_that_outlasts_its_reservation_leaves_no_bytes(sdk, engine, files_url, monkeypatch) -> None:
    copy = FileStore.copy

    def sweep_and_copy(store: FileStore, source: Any, url: str) -> int:
        assert files.remove_expired(engine, store) == 1
        return copy(store, source, url)

    monkeypatch.setattr(files, "UPLOAD_HOURS", 0)
    monkeypatch.setattr(FileStore, "copy", sweep_and_copy)
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.files.create(file=b"a", purpose="batch")
    assert (refused.value.status_code, refused.value.code) == (408, "body_timeout")
    assert not [path for path in ObjectStore.objects if path.startswith(files_url.partition("://")[2])]
