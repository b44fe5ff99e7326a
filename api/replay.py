"""Ended jobs submitted again: one, or a page of those that a filter selects. Each becomes a new job."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from api import concurrency, limits
from api.auth import Caller
from api.errors import NO_RETRY, ApiError, not_found
from api.follow import find_job
from api.prompts import check_fit, check_seats, check_token_ids, num_blocks
from api.sampling import check_vocabulary
from api.services import Services
from api.submit import accept, as_it_stands, find_card, find_earlier, mismatch, publish, too_late
from db import jobs, replays
from db.job_filter import JobFilter
from db.job_queries import JobRow, Load
from db.jobs import Created, IdempotencyMismatch, NewJob
from db.models import ENDED, Job, Worker
from db.replays import Limits
from db.sampling import Sampling


@dataclass(frozen=True)
class Outcome:
    """What became of one job of a page: its replay, or why there is none."""

    job_id: UUID
    created: Created | None
    refusal: ApiError | None = None


@dataclass(frozen=True)
class Selection:
    """Which jobs one call is to replay: the first `limit` that are `wanted`, from after the job `after` on."""

    wanted: JobFilter
    limit: int
    after: UUID | None
    idempotency_key: str | None


@dataclass(frozen=True)
class Page:
    """What one call did. `last_id`: the last job that it looked at, or None when there was none."""

    outcomes: list[Outcome]
    last_id: UUID | None
    has_more: bool


async def replay(
    services: Services, caller: Caller, job_id: str, fresh: Limits, *, idempotency_key: str | None
) -> JobRow:
    """Submit an ended job again, or raise the ApiError that says why not; a repeat is the replay as it stands."""
    row = await find_job(services, caller.tenant, job_id)
    earlier = await find_earlier(services, caller, idempotency_key, _digest(row.job.id, fresh))
    if earlier is not None:
        return await as_it_stands(services, earlier)
    if row.job.status not in ENDED:
        message = f"The job is {row.job.status}; it can be replayed once it has ended."
        raise ApiError(409, message, code="job_not_ended", headers=NO_RETRY)
    card = await find_card(services, row.job.model)
    async with services.sessions() as session:
        new = await _repeat(session, caller, row.job, card, fresh, idempotency_key)
    if new is None:
        raise not_found("job", job_id)
    return await accept(services, caller, new)


async def replay_page(services: Services, caller: Caller, selection: Selection, fresh: Limits) -> Page:
    """Submit the selected jobs again, the oldest first, in one transaction.

    Of two calls at once neither replays what the other does, unless jobs that were replayed before are wanted. A job
    that its model cannot take any more is reported and passed over. When the queue is full the page ends before the
    job that found it so; when that is the first one, this raises the 429.
    """
    refusal = too_late(fresh.start_by, fresh.finish_by)
    if refusal is not None:
        raise refusal
    async with services.sessions() as session:
        found = await replays.page(
            session,
            caller.tenant,
            wanted=selection.wanted,
            limit=selection.limit + 1,  # one more tells whether there is a next page
            after=selection.after,
            key=selection.idempotency_key,
        )
    page = await _admitted(services, caller, found[: selection.limit])
    cards = await _cards(services, page)
    outcomes = await _replay_all(services, caller, selection, fresh, page, cards)
    await publish(services, [each.created for each in outcomes if each.created is not None and each.created.is_new])
    return Page(outcomes, page[-1].id if page else None, has_more=len(page) < len(found))


async def _admitted(services: Services, caller: Caller, found: Sequence[Job]) -> list[Job]:
    """Those of the jobs, from the first one on, that their queues and the limits of the key have room for."""
    page, refusal = await _with_room(services, caller, found)
    num_taken = await caller.allowance.let_in([_num_tokens(job) for job in page]) if page else 0
    if num_taken < len(page):
        refusal = caller.allowance.refusal(_num_tokens(page[num_taken]))
    if refusal is not None and num_taken == 0:
        raise refusal
    return page[:num_taken]


async def _with_room(services: Services, caller: Caller, found: Sequence[Job]) -> tuple[list[Job], ApiError | None]:
    """The first jobs, as many as may wait and as the key may have at once; and why there are no more of them."""
    beside = Load(0, 0)  # of the whole page, in whichever queue: rather a page too short than a queue too long
    room = await concurrency.room(services, caller)
    for index, job in enumerate(found):
        newcomer = limits.Newcomer(job.model, job.tier, caller.key_id, _num_tokens(job))
        refusal = await limits.refusal(services, newcomer, beside=beside)
        if refusal is None and index == room:
            refusal = await concurrency.too_many(services, caller)
        if refusal is not None:
            return list(found[:index]), refusal
        beside = Load(beside.num_jobs + 1, beside.num_tokens + newcomer.num_tokens)
    return list(found), None


def _num_tokens(job: Job) -> int:
    """As a submit counts them."""
    return job.num_prompt_tokens + job.num_choices * job.max_tokens


async def _cards(services: Services, page: Sequence[Job]) -> dict[str, Worker | ApiError]:
    """Of each model of the page its card, or why there is none."""
    cards: dict[str, Worker | ApiError] = {}
    for model in {job.model for job in page}:
        try:
            cards[model] = await find_card(services, model)
        except ApiError as error:
            cards[model] = error
    return cards


async def _replay_all(
    services: Services,
    caller: Caller,
    selection: Selection,
    fresh: Limits,
    page: Sequence[Job],
    cards: dict[str, Worker | ApiError],
) -> list[Outcome]:
    """One transaction. Bodies are read one at a time: each may be megabytes."""
    key, window = selection.idempotency_key, services.settings.key_window
    outcomes = []
    async with services.sessions() as session:
        await replays.lock(session, caller.tenant)
        ids = [job.id for job in page]
        for job in await replays.still_wanted(session, caller.tenant, ids, wanted=selection.wanted, key=key):
            card = cards[job.model]
            if isinstance(card, ApiError):
                outcomes.append(Outcome(job.id, None, card))
                continue
            try:
                new = await _repeat(session, caller, job, card, fresh, replays.key_of(key, job.id))
            except ApiError as error:
                outcomes.append(Outcome(job.id, None, error))
                continue
            if new is not None:
                outcomes.append(Outcome(job.id, await _create(session, new, window)))
        await session.commit()
    return outcomes


async def _create(session: AsyncSession, new: NewJob, key_window: int) -> Created:
    try:
        return await jobs.create(session, new, key_window=key_window)
    except IdempotencyMismatch as error:
        raise mismatch() from error


async def _repeat(
    session: AsyncSession, caller: Caller, job: Job, card: Worker, fresh: Limits, idempotency_key: str | None
) -> NewJob | None:
    """The job as a new one; None when its body was deleted meanwhile. Raises the ApiError when it fits no more."""
    body = await replays.body(session, job.id)
    if body is None:
        return None
    session.expunge(body)
    param = "prompt" if body.messages is None else "messages"
    check_token_ids(card, body.prompt_token_ids)
    sampling = Sampling.model_validate(body.sampling)
    check_vocabulary(card, sampling)
    check_seats(card, n=sampling.n, num_beams=sampling.num_beams)
    check_fit(card, job.num_prompt_tokens, job.max_tokens, num_seats=sampling.num_seats, prompt_param=param)
    return replays.repeat(
        job,
        body,
        key_id=caller.key_id,
        num_blocks=num_blocks(job.num_prompt_tokens, job.max_tokens, card.block_size, num_seats=sampling.num_seats),
        limits=fresh,
        idempotency_key=idempotency_key,
        body_digest=_digest(job.id, fresh),
    )


def _digest(job_id: UUID, fresh: Limits) -> bytes:
    """Of what a replay was asked for: the job, and the limits that were sent."""
    sent = {name: str(value) for name, value in asdict(fresh).items() if value is not None}
    return hashlib.sha256(json.dumps(["replay", str(job_id), sent], sort_keys=True).encode()).digest()
