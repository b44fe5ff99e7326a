"""Files with the unmodified `openai` client, and what that client does not show."""

import openai
import pytest
from sqlalchemy import text, update
from sqlalchemy.orm import Session

from db import files
from db.file_store import FileStore
from db.models import File, Status
from tests.openai.batch_world import request


async def test_a_file_is_kept_described_listed_read_and_deleted(sdk, settings) -> None:
    content = bytes(range(256)) * 10_000  # over what is read at once
    file = await sdk.files.create(file=("a ü.bin", content), purpose="user_data")
    assert (file.object, file.bytes, file.filename, file.status) == ("file", len(content), "a ü.bin", "processed")
    assert file.expires_at is None and file.purpose == "user_data"
    assert await sdk.files.retrieve(file.id) == file
    assert [each.id async for each in sdk.files.list(purpose="user_data")] == [file.id]
    assert (await sdk.files.content(file.id)).content == content
    deleted = await sdk.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(file.id)
    assert list((settings.data_dir / "files").iterdir()) == []


async def test_the_synchronous_client_does_the_same(sync_sdk) -> None:
    file = await sync_sdk(lambda sdk: sdk.files.create(file=b"abc", purpose="batch"))
    assert (await sync_sdk(lambda sdk: sdk.files.content(file.id).read())) == b"abc"
    assert [each.id for each in await sync_sdk(lambda sdk: list(sdk.files.list()))] == [file.id]
    assert (await sync_sdk(lambda sdk: sdk.files.delete(file.id))).deleted


async def test_a_file_expires_when_it_was_told_to_and_a_batch_file_after_thirty_days(sdk) -> None:
    short = await sdk.files.create(
        file=b"a", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    month = await sdk.files.create(file=b"a", purpose="batch")
    assert short.expires_at - short.created_at in (3600, 3601)
    assert month.expires_at - month.created_at in (2592000, 2592001)


async def test_files_are_listed_in_pages_by_age_and_purpose(sdk) -> None:
    ids = [(await sdk.files.create(file=b"a", purpose="user_data")).id for _ in range(5)]
    await sdk.files.create(file=b"a", purpose="batch")
    pages = sdk.files.list(purpose="user_data", limit=2, order="asc")
    assert [file.id async for file in pages] == ids
    newest = await sdk.files.list(purpose="user_data", limit=2)
    assert [file.id for file in newest.data] == ids[:2:-1] and newest.has_more


async def test_a_stranger_sees_none_of_it(sdk, stranger) -> None:
    file = await sdk.files.create(file=b"a", purpose="batch")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        reply = await stranger.request(method, f"/v1/files/{file.id}{path}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "file_not_found")
    assert (await stranger.get("/v1/files")).json()["data"] == []
    made = await stranger.post(
        "/v1/batches", json={"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    )
    assert made.status_code == 404
    assert (await sdk.files.content(file.id)).content == b"a"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "nonsense"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after"),
        ({"file": b""}, "file"),
    ],
)
async def test_a_wrong_upload_names_its_field(sdk, fields, param) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(**{"file": b"a", "purpose": "batch"} | fields)
    assert param in refused.value.param
    assert (await sdk.files.list()).data == []


async def test_a_file_over_the_limit_is_refused_and_leaves_nothing(sdk, settings, monkeypatch) -> None:
    monkeypatch.setattr("api.files.routes.MAX_FILE_BYTES", 1000)
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.files.create(file=b"a" * 1001, purpose="batch")
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
    assert not (settings.data_dir / "files").exists()


async def test_a_form_over_all_limits_is_cut_off_as_it_comes(sdk, monkeypatch) -> None:
    monkeypatch.setattr("api.body_limit.MAX_FILE_BYTES", 1000)
    with pytest.raises(openai.APIStatusError) as refused:
        await sdk.files.create(file=b"a" * 200_000, purpose="batch")
    assert refused.value.status_code == 413


async def test_an_upload_that_was_killed_is_never_seen_and_goes_with_its_bytes(sdk, engine, settings) -> None:
    file = await sdk.files.create(file=b"half", purpose="user_data")
    with Session(engine) as session, session.begin():  # as it was just before its end
        session.execute(update(File).values(status="uploading", expires_at=text("clock_timestamp() + '1 hour'")))
    with pytest.raises(openai.NotFoundError):
        await sdk.files.content(file.id)
    assert (await sdk.files.list()).data == []
    store = FileStore(settings.resolved_files_url)
    assert files.remove_expired(engine, store) == 0
    with Session(engine) as session, session.begin():
        session.execute(update(File).values(expires_at=text("clock_timestamp()")))
    assert files.remove_expired(engine, store) == 1
    assert list((settings.data_dir / "files").iterdir()) == []


async def test_a_file_whose_bytes_cannot_be_removed_does_not_keep_the_others(sdk, engine, settings) -> None:
    for _ in range(3):
        await sdk.files.create(file=b"a", purpose="user_data")
    with Session(engine) as session, session.begin():
        oldest = session.query(File).order_by(File.id).first()
        oldest.url = "nonsense://x"
        session.execute(update(File).values(expires_at=text("clock_timestamp()")))
        oldest_id = oldest.id
    assert files.remove_expired(engine, FileStore(settings.resolved_files_url)) == 2
    with Session(engine) as session:
        assert [file.id for file in session.query(File)] == [oldest_id]


async def test_a_file_that_a_batch_reads_or_writes_is_kept_until_its_end(sdk, world) -> None:
    batch_id = await world.begin([request("a"), request("b")])
    world.worker.run(world.jobs(Status.QUEUED)[0], " turns")
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    for file_id in (batch.input_file_id, batch.output_file_id):
        with pytest.raises(openai.ConflictError) as refused:
            await sdk.files.delete(file_id)
        assert refused.value.code == "file_in_use" and batch_id in refused.value.message
    await world.run_to_end(batch_id)
    for file_id in (batch.input_file_id, batch.output_file_id):
        assert (await sdk.files.delete(file_id)).deleted


async def test_ids_that_are_none_are_not_found(client) -> None:
    for file_id in ("file-1", "nonsense", "file-" + "g" * 32):
        assert (await client.get(f"/v1/files/{file_id}")).status_code == 404
    assert (await client.get("/v1/files", params={"after": "nonsense"})).status_code == 400
