"""From what a client sent to a job in the queue: model, prompt, limits, one transaction, then the message.

Jobs, completions and chats are submitted by the same `submit`; what differs is how they are answered.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.exceptions import RedisError

from api import concurrency, limits
from api.auth import Caller
from api.errors import ApiError, invalid, retry_after
from api.follow import find_job
from api.job_view import PREFIX
from api.kept_spelling import with_spelling
from api.limits import Newcomer
from api.prompts import fit, num_blocks, prompt_token_ids
from api.sampling import sampling_of
from api.services import Services
from api.submission import Submission
from db import jobs, submits, workers
from db.ids import public_id
from db.job_queries import JobRow, Load
from db.jobs import Created, IdempotencyMismatch, NewJob
from db.models import Job, JobInput, Worker
from db.settings import TIERS

log = logging.getLogger(__name__)

MOST_AHEAD = timedelta(days=366)
LOADING_RETRY_SECONDS = 5
STALE_SECONDS = 10.0  # that a model's card may be older for the first who asks after a pause; its absence may not
MOST_TOKENS_TOGETHER = 8192  # of a prompt; a longer one does not hold up those that are submitted with it


async def submit(services: Services, caller: Caller, submission: Submission) -> JobRow:
    """Accept the job, or raise the ApiError that says why not. It is committed, and published, when this returns.

    With an Idempotency-Key that was used before, with the same body, this is the job as it stands by now.
    """
    digest = b"" if submission.idempotency_key is None else submission.digest()
    earlier = await find_earlier(services, caller, submission.idempotency_key, digest)
    if earlier is not None:
        return await as_it_stands(services, earlier)
    card = await find_card(services, submission.sent.model)
    return await accept(services, caller, await _new_job(services, caller, card, submission, digest))


async def submit_all(services: Services, caller: Caller, submissions: Sequence[Submission]) -> list[JobRow]:
    """Accept all of the jobs or none. Only a job that comes alone may have an Idempotency-Key."""
    if len(submissions) == 1:
        return [await submit(services, caller, submissions[0])]
    assert all(submission.idempotency_key is None for submission in submissions)
    card = await find_card(services, submissions[0].sent.model)
    news = []
    for submission in submissions:
        news.append(await _new_job(services, caller, card, submission, b""))
        await asyncio.sleep(0)  # each may take a millisecond of the event loop
    refusal = await _refusal_of_all(services, caller, news)
    if refusal is not None:
        raise refusal
    created = await _create_all(services, caller, news)
    await publish(services, created)
    return [_row(each, new) for each, new in zip(created, news, strict=True)]


async def accept(services: Services, caller: Caller, new: NewJob) -> JobRow:
    """Make the job and publish it, or raise the ApiError that says why not; a repeat is the job as it stands."""
    created = await _create(services, caller, new)
    if not created.is_new:
        return await as_it_stands(services, created.job)
    await publish(services, [created])
    return _row(created, new)


def _row(created: Created, new: NewJob) -> JobRow:
    """What a read would give, less what no answer shows."""
    given = JobInput(
        job_id=created.job.id,
        webhook_url=new.webhook_url,
        metadata_=new.metadata,
        sampling=new.sampling.model_dump(mode="json"),
        request=new.request,
    )
    return JobRow(created.job, given, None, created.position)


async def find_card(services: Services, model: str) -> Worker:
    """The card of `model`, also while its worker loads or is away: what is sent is kept. 404 for other names."""

    async def load() -> Worker | None:
        async with services.autocommit() as session:
            return await workers.card(session, model)

    card = await services.cards.get(model, load, stale_seconds=STALE_SECONDS) or await services.cards.get(model, load)
    if card is not None:
        return card
    async with services.autocommit() as session:
        served = {worker.model: worker for worker in await workers.models(session)}
    if model in served:  # it registered just now
        services.cards.forget(model)
        return served[model]
    if not served:
        raise ApiError(
            503,
            "No engine worker has registered a model yet; it is probably starting. Try again shortly.",
            code="model_loading",
            headers=retry_after(LOADING_RETRY_SECONDS),
        )
    names = ", ".join(f"'{name}'" for name in sorted(served))
    message = f"The model '{model}' is not served here; served: {names}."
    raise ApiError(404, message, code="model_not_found", param="model")


async def find_earlier(services: Services, caller: Caller, key: str | None, digest: bytes) -> Job | None:
    """The job that this submit repeats. It is found though its model may be gone and its queue full."""
    if key is None:
        return None
    async with services.autocommit() as session:
        try:
            return await submits.earlier(session, caller.tenant, key, digest)
        except IdempotencyMismatch as error:
            raise mismatch() from error


async def as_it_stands(services: Services, job: Job) -> JobRow:
    """The job with its bodies, now."""
    return await find_job(services, job.tenant, public_id(PREFIX, job.id))


async def prepare(services: Services, caller: Caller, submission: Submission) -> NewJob:
    """The job that was sent, checked against its model and not made; raises the ApiError that says what is wrong."""
    card = await find_card(services, submission.sent.model)
    return await _new_job(services, caller, card, submission, b"")


async def _new_job(services: Services, caller: Caller, card: Worker, submission: Submission, digest: bytes) -> NewJob:
    sent, token_ids = submission.sent, await prompt_token_ids(services, card, submission)
    max_tokens = fit(card, len(token_ids), submission)
    return NewJob(
        tenant=caller.tenant,
        key_id=caller.key_id,
        kind=submission.kind,
        model=card.model,
        tier=TIERS.index(sent.tier),
        stream=submission.stream,
        prompt=submission.prompt if isinstance(submission.prompt, str) else None,
        messages=submission.messages,
        prompt_token_ids=token_ids,
        sampling=await sampling_of(services, card, submission, max_tokens),
        max_tokens=max_tokens,
        num_blocks=num_blocks(len(token_ids), max_tokens, card.block_size, num_seats=sent.num_seats),
        seed=sent.seed,
        webhook_url=sent.webhook_url,
        metadata=sent.metadata,
        request=await _request(services, card, submission),
        start_by=sent.start_by,
        finish_by=submission.finish_by or sent.finish_by,
        run_for=sent.run_for,
        idempotency_key=submission.idempotency_key,
        body_digest=digest,
    )


async def _request(services: Services, card: Worker, submission: Submission) -> dict[str, Any] | None:
    """What its dress needs to answer, and how its calls are read."""
    if submission.tools is None:
        return submission.request
    spelling = submission.tools.spelling(card, await services.texts.tokenizer(card))
    return with_spelling(submission.request, spelling)


async def _create(services: Services, caller: Caller, new: NewJob) -> Created:
    """One transaction: one's own with an Idempotency-Key and where the key's jobs are counted, else of all at once.

    A repeat of a submit that is in flight gets the same job, even if the queue is full by now.
    What is asked of the stores is asked before: within, it would need a second connection while holding the first.
    """
    refusal = await _refusal(services, caller, new)
    if refusal is not None and new.idempotency_key is None:
        raise refusal
    is_alone = new.idempotency_key is not None or concurrency.is_limited(caller)
    if not is_alone and len(new.prompt_token_ids) <= MOST_TOKENS_TOGETHER:
        return await services.submits.run(new)
    async with concurrency.turn(services, caller), services.sessions() as session:
        is_full = await concurrency.is_full(session, caller)
        try:
            created = await jobs.create(session, new, key_window=services.settings.key_window)
        except IdempotencyMismatch as error:
            raise mismatch() from error
        if not created.is_new or (refusal is None and not is_full):
            await session.commit()
            return created
    raise refusal or await concurrency.too_many(services, caller)  # and nothing is committed


async def _create_all(services: Services, caller: Caller, news: Sequence[NewJob]) -> list[Created]:
    window = services.settings.key_window
    if not concurrency.is_limited(caller):
        async with services.autocommit() as session:  # it is one statement
            return await jobs.create_many(session, news, key_window=window)
    async with concurrency.turn(services, caller), services.sessions() as session:
        if not await concurrency.is_full(session, caller, num_jobs=len(news)):
            created = await jobs.create_many(session, news, key_window=window)
            await session.commit()
            return created
    raise await concurrency.too_many(services, caller)


async def _refusal(services: Services, caller: Caller, new: NewJob) -> ApiError | None:
    """Why the job cannot be queued. Its tokens are taken off the key's rate last, when nothing else is in its way."""
    newcomer = Newcomer.of(new)
    refusal = (
        too_late(new.start_by, new.finish_by)
        or await limits.refusal(services, newcomer)
        or await concurrency.refusal(services, caller)
    )
    if refusal is not None or await caller.allowance.let_in([newcomer.num_tokens]):
        return refusal
    return caller.allowance.refusal(newcomer.num_tokens)


async def _refusal_of_all(services: Services, caller: Caller, news: Sequence[NewJob]) -> ApiError | None:
    """The same of jobs that come together: the last is judged as if the others were queued."""
    newcomers = [Newcomer.of(new) for new in news]
    *others, last = newcomers
    beside = Load(len(others), sum(other.num_tokens for other in others))
    refusal = too_late(news[0].start_by, news[0].finish_by) or await limits.refusal(services, last, beside=beside)
    room = await concurrency.room(services, caller)
    if refusal is None and room is not None and room < len(news):
        refusal = await concurrency.too_many(services, caller)
    num_tokens = sum(newcomer.num_tokens for newcomer in newcomers)
    if refusal is not None or await caller.allowance.let_in([num_tokens]):
        return refusal
    return caller.allowance.refusal(num_tokens)


def too_late(start_by: datetime | None, finish_by: datetime | None) -> ApiError | None:
    """The 400 for a limit that has passed, or that is too far ahead."""
    now = datetime.now(UTC)
    for name, moment in (("start_by", start_by), ("finish_by", finish_by)):
        if moment is not None and moment <= now:
            return invalid(f"'{name}' is {moment.isoformat()}, which has passed.", param=name)
        if moment is not None and moment - now > MOST_AHEAD:
            return invalid(f"'{name}' is {moment.isoformat()}, more than {MOST_AHEAD.days} days ahead.", param=name)
    return None


def mismatch() -> ApiError:
    """The 422 for a key that was used with another body."""
    message = "This Idempotency-Key was used with another body; use a new key for a new job."
    return ApiError(422, message, code="idempotency_mismatch", param="Idempotency-Key")


async def publish(services: Services, new: Sequence[Created]) -> None:
    """Count new jobs, and push the messages of those that are ready."""
    for job in (created.job for created in new):
        services.metrics.submitted.labels(job.model, TIERS[job.tier]).inc()
        log.info("job submitted", extra={"job_id": str(job.id), "model": job.model, "tier": TIERS[job.tier]})
    readies = [created.ready for created in new if created.ready is not None]
    if not readies:
        return
    try:
        await asyncio.gather(*(services.pushes.run(ready) for ready in readies))
    except (RedisError, OSError) as error:  # the row is what counts: the sweep makes the message again
        ids = ", ".join(str(ready.job_id) for ready in readies)
        log.warning("jobs not published", extra={"job_ids": ids, "error": str(error)})
