"""What stops a batch or holds it up: a cancel, the end of its window, a full queue, stores away, dying processes."""

import asyncio
from datetime import timedelta

import openai
import pytest
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from api.batches.runner import BatchRunner
from api.batches.steps import advance
from api.completions.routes import submissions_of
from api.completions.schemas import CompletionCreate
from api.submission import Submission
from db import batches, jobs, retention
from db.ids import new_id
from db.models import Batch, Job, Status, WebhookEvent, Worker
from tests.openai.batch_world import request


def counts(batch) -> tuple[int, int, int]:
    return (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed)


async def test_a_cancelled_batch_keeps_what_has_ended_and_tells_of_the_rest(sdk, world, monkeypatch) -> None:
    monkeypatch.setattr("api.cancel.WORKER_SECONDS", 0.05)
    batch_id = await world.begin([request(f"r{i}") for i in range(8)])
    first, second, *_ = world.jobs(Status.QUEUED)
    world.worker.run(first, " kept")
    await world.rounds()
    world.worker.start(second)
    world.worker.say(second, " half")
    cancelling = await sdk.batches.cancel(batch_id)
    assert cancelling.status == "cancelling" and cancelling.cancelling_at
    again = await sdk.batches.cancel(batch_id)
    assert (again.status, again.cancelling_at) == ("cancelling", cancelling.cancelling_at)
    await world.rounds(3)
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch), world.jobs(Status.QUEUED, Status.RUNNING)) == ("cancelled", (8, 1, 7), [])
    assert batch.cancelled_at >= batch.cancelling_at
    assert [line["custom_id"] for line in await world.content(batch.output_file_id)]
    rest = await world.content(batch.error_file_id)
    assert {(line["error"]["code"], line["response"]) for line in rest} == {("batch_cancelled", None)}
    assert len({line["custom_id"] for line in rest}) == len({line["id"] for line in rest}) == 7
    assert (await sdk.batches.cancel(batch_id)).status == "cancelled"


async def test_a_cancel_is_heard_of_while_line_after_line_is_refused(sdk, world, monkeypatch) -> None:
    monkeypatch.setattr("api.batches.steps.FEED_SECONDS", 0.0)
    batch_id = await world.begin([request(str(i), colour="red") for i in range(500)])
    assert 0 < counts(await sdk.batches.retrieve(batch_id))[2] < 500
    await sdk.batches.cancel(batch_id)
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch)) == ("cancelled", (500, 0, 500))
    codes = [(line["error"] or {}).get("code") for line in await world.content(batch.error_file_id)]
    assert 0 < codes.count("batch_cancelled") < 500


async def test_a_batch_can_be_cancelled_before_it_was_checked(sdk, world) -> None:
    batch_id = await world.create([request("a")])
    await sdk.batches.cancel(batch_id)
    await world.rounds(2)
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch), world.jobs(Status.QUEUED)) == ("cancelled", (0, 0, 0), [])


async def test_a_batch_past_its_window_keeps_what_has_ended_and_tells_of_the_rest(sdk, world) -> None:
    batch_id = await world.begin([request(f"r{i}") for i in range(8)], completion_window="1h")
    world.worker.run(world.jobs(Status.QUEUED)[0], " kept")
    with Session(world.engine) as session, session.begin():
        (due,) = session.scalars(
            update(Batch).values(expires_at=func.clock_timestamp() - timedelta(minutes=1)).returning(Batch.expires_at)
        )
        session.execute(update(Job).where(Job.status == Status.QUEUED).values(finish_by=due))
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch)) == ("in_progress", (8, 1, 4)), "three are in the queue"
    with Session(world.engine) as session, session.begin():  # as the sweep does
        assert len(jobs.expire_due(session, jobs.due(session, has_run=False, after=None, limit=10))) == 3
    await world.rounds(2)
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch)) == ("expired", (8, 1, 7))
    assert batch.expired_at and batch.completed_at is None
    assert len(await world.content(batch.output_file_id)) == 1
    rest = await world.content(batch.error_file_id)
    assert {(line["error"]["code"], line["response"]) for line in rest} == {("batch_expired", None)}
    assert rest[0]["error"]["message"] == "This request could not be executed before the completion window expired."


async def test_the_jobs_of_a_batch_end_with_its_window(world, sdk) -> None:
    batch_id = await world.begin([request("a"), request("b", finish_by="2099-01-01T00:00:00Z")])
    with Session(world.engine) as session:
        expires_at = session.scalars(select(Batch.expires_at)).one()
        assert set(session.scalars(select(Job.finish_by))) == {expires_at}
    assert (await world.run_to_end(batch_id)).status == "completed"


async def test_a_full_queue_keeps_lines_waiting_and_fails_none(sdk, world) -> None:
    settings = world.services.settings
    world.services.settings = settings.model_copy(update={"max_queued_jobs_per_key": 2})
    batch_id = await world.begin([request(str(i)) for i in range(6)])
    assert len(world.jobs(Status.QUEUED)) == 2
    assert counts(await sdk.batches.retrieve(batch_id)) == (6, 0, 0)
    world.services.settings = settings
    assert counts(await world.run_to_end(batch_id)) == (6, 6, 0)


async def test_a_line_on_which_the_server_stumbles_fails_and_holds_up_no_other(sdk, world, monkeypatch) -> None:
    def stumble(body: CompletionCreate, _: object) -> list[Submission]:
        if body.prompt == "stumble":
            raise ZeroDivisionError
        return submissions_of(body, None)

    monkeypatch.setattr("api.batches.endpoints.submissions_of", stumble)
    batch = await world.run_to_end(await world.create([request("a", prompt="stumble"), request("b")]))
    assert counts(batch) == (2, 1, 1)
    [line] = await world.content(batch.error_file_id)
    assert (line["response"]["status_code"], line["response"]["body"]["error"]["code"]) == (500, "internal_error")


@pytest.mark.parametrize("error", [OSError("the bucket does not answer"), FileNotFoundError("not mounted")])
async def test_lines_wait_while_a_store_is_away(sdk, world, monkeypatch, error: OSError) -> None:
    def die(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("db.file_store.FileStore.ranges", die)
        batch_id = await world.begin([request("a")])
        await world.rounds()
        assert counts(await sdk.batches.retrieve(batch_id)) == (1, 0, 0)
    assert counts(await world.run_to_end(batch_id)) == (1, 1, 0)


async def test_a_batch_whose_input_was_taken_from_the_store_can_be_ended_with_what_it_has(sdk, world) -> None:
    batch_id = await world.begin([request(str(i)) for i in range(6)])
    world.run_jobs()
    await world.rounds()
    for path in (world.services.settings.data_dir / "files").iterdir():
        path.unlink()
    world.run_jobs()
    await world.rounds()
    assert counts(await sdk.batches.retrieve(batch_id)) == (6, 4, 0), "it may come back"
    await sdk.batches.cancel(batch_id)
    batch = await world.run_to_end(batch_id)
    assert (batch.status, counts(batch)) == ("cancelled", (6, 4, 2))
    said = [line["response"]["body"]["error"]["code"] for line in await world.content(batch.error_file_id)]
    assert said == ["file_not_found"] * 2


async def test_a_line_waits_when_the_check_of_its_grammar_breaks(sdk, world) -> None:
    first, second = [request(name, structured_output={"regex": f"{name}+"}) for name in "ab"]
    assert counts(await world.run_to_end(await world.create([first]))) == (1, 1, 0)
    world.services.grammars._process.kill()
    batch_id = await world.begin([second])
    assert counts(await sdk.batches.retrieve(batch_id)) == (1, 0, 0)
    assert counts(await world.run_to_end(batch_id)) == (1, 1, 0)


@pytest.mark.parametrize(("is_cancelled", "status"), [(True, "cancelled"), (False, "completed")])
async def test_a_batch_that_is_to_end_waits_no_longer_for_a_tokenizer_that_is_away(
    sdk, world, make_worker, is_cancelled, status
) -> None:
    make_worker(id=new_id(), tokenizer_path="/nowhere/tokenizer.json")
    batch_id = await world.begin([request("a", prompt=[5, 6], logprobs=1)])
    assert world.run_jobs() == 1
    await world.rounds()
    assert counts(await sdk.batches.retrieve(batch_id)) == (1, 0, 0), "it may come back"
    if is_cancelled:
        await sdk.batches.cancel(batch_id)
    else:
        with Session(world.engine) as session, session.begin():
            session.execute(update(Batch).values(expires_at=func.clock_timestamp()))
    await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, counts(batch)) == (status, (1, 0, 1))
    [line] = await world.content(batch.error_file_id)
    assert line["response"]["body"]["error"]["code"] == "tokenizer_unavailable"


async def test_lines_wait_while_no_model_is_served_yet(sdk, world) -> None:
    with Session(world.engine) as session, session.begin():
        session.execute(delete(Worker))
    batch_id = await world.begin([request("a")])
    assert counts(await sdk.batches.retrieve(batch_id)) == (1, 0, 0)


async def test_the_synchronous_client_makes_looks_and_cancels(sync_sdk) -> None:
    def use(sdk: openai.OpenAI) -> list[str]:
        file = sdk.files.create(file=b"{}", purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        seen = [sdk.batches.retrieve(batch.id), next(iter(sdk.batches.list())), sdk.batches.cancel(batch.id)]
        assert {each.id for each in seen} == {batch.id}
        return [each.status for each in seen]

    assert await sync_sdk(use) == ["validating", "validating", "cancelling"]


async def test_lines_go_an_hour_after_the_end_and_the_files_stay(world, sdk) -> None:
    batch = await world.run_to_end(await world.create([request(str(i)) for i in range(3)]))
    with Session(world.engine) as session, session.begin():
        now = session.scalar(select(func.clock_timestamp()))
        assert retention.delete_batch(session, "batch lines", now) == 0
        session.execute(update(Batch).values(ended_at=now - timedelta(hours=2)))
        assert retention.delete_batch(session, "batches", now) == 0, "its lines go first"
        assert retention.delete_batch(session, "batch lines", now) == 3
        assert retention.delete_batch(session, "batches", now - timedelta(days=1)) == 0
    assert len(await world.content(batch.output_file_id)) == 3
    with Session(world.engine) as session, session.begin():
        assert retention.delete_batch(session, "batches", now) == 1


async def test_one_process_runs_batches_and_another_goes_on_after_its_end(world, sdk) -> None:
    batch_id = await world.begin([request("a")])
    other = BatchRunner(world.services)
    assert not await other.round(), "somebody has the lock"
    world.run_jobs()
    await world.runner.close()
    while (await sdk.batches.retrieve(batch_id)).status != "completed":
        if not await other.round(patience_seconds=30):
            await asyncio.sleep(0.01)  # Postgres has yet to notice the end of the connection
    await other.close()


async def test_two_processes_at_once_run_no_line_twice_and_count_none_twice(world, sdk) -> None:
    """As when one that was frozen, and has lost the lock meanwhile, goes on."""
    batch_id = await world.create([request(f"r{i}", **({"colour": 1} if i % 5 == 0 else {})) for i in range(20)])
    batch = await sdk.batches.retrieve(batch_id)
    while batch.status != "completed":
        async with world.services.autocommit() as session:
            [seen] = await batches.open_batches(session)
        await asyncio.gather(*(advance(world.services, seen) for _ in range(3)), return_exceptions=True)
        world.run_jobs()
        batch = await sdk.batches.retrieve(batch_id)
    assert counts(batch) == (20, 16, 4)
    written = await world.content(batch.output_file_id) + await world.content(batch.error_file_id)
    assert sorted(line["custom_id"] for line in written) == sorted(f"r{i}" for i in range(20))
    for file_id in (batch.output_file_id, batch.error_file_id):
        content = (await sdk.files.content(file_id)).content
        assert (await sdk.files.retrieve(file_id)).bytes == len(content)
    with Session(world.engine) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 16


async def test_a_process_that_dies_while_it_writes_the_files_leaves_nothing_to_be_seen(world, sdk, monkeypatch) -> None:
    batch_id = await world.begin([request(str(i)) for i in range(3)])
    world.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr("db.file_store.NewFile.commit", lambda self: None)  # it wrote, and died
        patch.setattr("db.batches.end", _die)
        await world.rounds()
    batch = await sdk.batches.retrieve(batch_id)
    assert (batch.status, len(await world.content(batch.output_file_id))) == ("finalizing", 3)
    batch = await world.run_to_end(batch_id)
    assert (batch.status, len(await world.content(batch.output_file_id))) == ("completed", 3)
    names = {path.name for path in (world.services.settings.data_dir / "files").iterdir()}
    assert not {name for name in names if name.endswith(".part")}


async def _die(*_: object) -> None:
    raise OSError("killed")


async def test_each_batch_that_ends_writes_one_event_of_its_own(sdk, world) -> None:
    done, wrong, late = [await world.create(lines) for lines in ([request("a")], ["nonsense"], [request("a")])]
    await sdk.batches.cancel(late)
    for batch_id in (done, wrong, late):
        await world.run_to_end(batch_id)
    await world.rounds(2)
    with Session(world.engine) as session:
        types = session.scalars(select(WebhookEvent.type)).all()
    assert sorted(types) == ["batch.cancelled", "batch.completed", "batch.failed"]
