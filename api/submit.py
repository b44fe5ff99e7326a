"""From what a client sent to a job in the queue: model, prompt, limits, one transaction, then the message.

Jobs and completions are submitted by the same `submit`; what differs is how they are answered.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.exceptions import RedisError

from api import limits
from api.auth import Caller
from api.errors import ApiError, invalid, retry_after
from api.follow import find_job
from api.job_view import PREFIX
from api.services import Services
from db import jobs, queue, workers
from db.ids import public_id
from db.job_queries import JobRow
from db.jobs import Created, IdempotencyMismatch, NewJob
from db.models import JobInput, Worker
from db.sampling import Sampling
from db.settings import TIERS
from workers.text.chat_template import ChatTemplateError

log = logging.getLogger(__name__)

MOST_AHEAD = timedelta(days=366)
MAX_IDEMPOTENCY_KEY = 255  # characters
LOADING_RETRY_SECONDS = 5


@dataclass(frozen=True)
class Submission:
    """A submit as the routes hand it over: validated field by field, not yet against a model."""

    kind: str  # job | completion
    model: str
    prompt: str | list[int] | None
    messages: list[dict[str, str]] | None
    tier: str
    max_tokens: int | None  # None: default_max_tokens, or what there is room for
    default_max_tokens: int
    seed: int | None
    stream: bool
    sampling: Sampling
    webhook_url: str | None = None
    metadata: dict[str, str] | None = None
    start_by: datetime | None = None
    finish_by: datetime | None = None
    run_for: float | None = None  # seconds


async def submit(
    services: Services, caller: Caller, submission: Submission, *, idempotency_key: str | None, body: bytes
) -> JobRow:
    """Accept the job, or raise the ApiError that says why not. It is committed, and published, when this returns.

    With an Idempotency-Key that was used before, with the same body, this is the job as it stands by now.
    """
    _check_idempotency_key(idempotency_key)
    card = await find_card(services, submission.model)
    token_ids = await _prompt_token_ids(services, card, submission)
    max_tokens = _fit(card, len(token_ids), submission)
    new = NewJob(
        tenant=caller.tenant,
        key_id=caller.key_id,
        kind=submission.kind,
        model=card.model,
        tier=TIERS.index(submission.tier),
        stream=submission.stream,
        prompt=submission.prompt if isinstance(submission.prompt, str) else None,
        messages=submission.messages,
        prompt_token_ids=token_ids,
        sampling=submission.sampling,
        max_tokens=max_tokens,
        num_blocks=num_blocks(len(token_ids), max_tokens, card.block_size),
        seed=submission.seed,
        webhook_url=submission.webhook_url,
        metadata=submission.metadata or {},
        start_by=submission.start_by,
        finish_by=submission.finish_by,
        run_for=submission.run_for,
        idempotency_key=idempotency_key,
        body_digest=hashlib.sha256(body).digest(),
    )
    created = await _create(services, new)
    if not created.is_new:
        return await find_job(services, caller.tenant, public_id(PREFIX, created.job.id))
    await _publish(services, created)
    sent = JobInput(job_id=created.job.id, webhook_url=new.webhook_url, metadata_=new.metadata)
    return JobRow(created.job, sent, None)  # what a read would give, less what no answer shows


async def find_card(services: Services, model: str) -> Worker:
    """The card of `model`, also while its worker loads or is away: what is sent is kept. 404 for other names."""

    async def load() -> Worker | None:
        async with services.sessions() as session:
            return await workers.card(session, model)

    card = await services.cards.get(model, load)
    if card is not None:
        return card
    async with services.sessions() as session:
        served = sorted({worker.model for worker in await workers.models(session)})
    if not served:
        raise ApiError(
            503,
            "No engine worker has registered a model yet; it is probably starting. Try again shortly.",
            code="model_loading",
            headers=retry_after(LOADING_RETRY_SECONDS),
        )
    names = ", ".join(f"'{name}'" for name in served)
    message = f"The model '{model}' is not served here; served: {names}."
    raise ApiError(404, message, code="model_not_found", param="model")


def num_blocks(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """KV blocks that the job needs at most; the engine counts the same way."""
    return -(-(num_prompt_tokens + max_tokens) // block_size)


def canonical(body: dict[str, Any]) -> bytes:
    """The body as bytes that do not depend on the order or spelling of its fields."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), default=str).encode()


def _check_times(new: NewJob) -> None:
    now = datetime.now(UTC)
    for name, moment in (("start_by", new.start_by), ("finish_by", new.finish_by)):
        if moment is not None and moment <= now:
            raise invalid(f"'{name}' is {moment.isoformat()}, which has passed.", param=name)
        if moment is not None and moment - now > MOST_AHEAD:
            raise invalid(f"'{name}' is {moment.isoformat()}, more than {MOST_AHEAD.days} days ahead.", param=name)


def _check_idempotency_key(key: str | None) -> None:
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        message = f"Idempotency-Key has {len(key)} characters; it takes 1 to {MAX_IDEMPOTENCY_KEY}."
        raise invalid(message, param="Idempotency-Key")


async def _prompt_token_ids(services: Services, card: Worker, submission: Submission) -> list[int]:
    """The prompt as the model will read it."""
    if submission.messages is not None:
        token_ids = await services.texts.encode(card, await _render(services, card, submission.messages))
        param = "messages"
    elif isinstance(submission.prompt, str):
        token_ids = await services.texts.encode(card, submission.prompt)
        param = "prompt"
    else:
        token_ids = submission.prompt or []
        param = "prompt"
        _check_token_ids(card, token_ids)
    if not token_ids:
        raise invalid(f"'{param}' has no tokens; there must be at least one to continue from.", param=param)
    return token_ids


async def _render(services: Services, card: Worker, messages: list[dict[str, str]]) -> str:
    if card.chat_template is None:
        raise invalid(
            f"The model '{card.model}' has no chat template. Send 'prompt' instead, or have the operator set "
            "HEADRACE_CHAT_TEMPLATE to a Jinja2 template or a file with one.",
            param="messages",
            code="no_chat_template",
        )
    try:
        return await services.texts.render(card, messages)
    except ChatTemplateError as error:
        message = f"The chat template of '{card.model}' refuses these messages: {error}"
        raise invalid(message, param="messages", code="chat_template_error") from error


def _check_token_ids(card: Worker, token_ids: list[int]) -> None:
    worst = max(token_ids, default=0)
    if worst >= card.vocab_size:
        raise invalid(
            f"Token id {worst:,} is out of range; the vocabulary of '{card.model}' has {card.vocab_size:,} ids from 0.",
            param="prompt",
        )


def _fit(card: Worker, num_prompt_tokens: int, submission: Submission) -> int:
    """The job's max_tokens, or a 400 with the numbers when prompt and output can never fit."""
    room = min(card.max_model_len, card.num_blocks * card.block_size) - num_prompt_tokens
    wanted = submission.max_tokens
    if wanted is None:
        wanted = max(1, min(submission.default_max_tokens, room))
    if wanted <= room:
        return wanted
    total = num_prompt_tokens + wanted
    if total > card.max_model_len:
        limit = f"'{card.model}' takes {card.max_model_len:,} in all"
    else:
        limit = f"the KV cache of '{card.model}' holds {card.num_blocks * card.block_size:,}"
    way_out = f"Send max_tokens of at most {room:,}" if room > 0 else "Shorten the prompt"
    raise invalid(
        f"The prompt has {num_prompt_tokens:,} tokens and max_tokens is {wanted:,}, together {total:,}; {limit}. "
        f"{way_out}.",
        param="max_tokens" if room > 0 else ("messages" if submission.messages is not None else "prompt"),
        code="context_length_exceeded",
    )


async def _create(services: Services, new: NewJob) -> Created:
    """One transaction. A repeated submit gets its job back, even if by now the queue is full or its time has passed."""
    if new.idempotency_key is None:
        await _check_new(services, new)
    async with services.sessions() as session:
        try:
            created = await jobs.create(session, new, key_window=services.settings.key_window)
        except IdempotencyMismatch as error:
            message = "This Idempotency-Key was used with another body; use a new key for a new job."
            raise ApiError(422, message, code="idempotency_mismatch", param="Idempotency-Key") from error
        if created.is_new and new.idempotency_key is not None:
            await _check_new(services, new)
        await session.commit()
    return created


async def _check_new(services: Services, new: NewJob) -> None:
    """What holds for a job that was not there before."""
    _check_times(new)
    await limits.check(services, new)


async def _publish(services: Services, created: Created) -> None:
    job = created.job
    services.metrics.submitted.labels(job.model, TIERS[job.tier]).inc()
    log.info("job submitted", extra={"job_id": str(job.id), "model": job.model, "tier": TIERS[job.tier]})
    if created.ready is None:
        return
    try:
        await queue.push_async(services.redis, [created.ready])
    except (RedisError, OSError) as error:  # the row is what counts: the sweep makes the message again
        log.warning("job not published", extra={"job_id": str(job.id), "error": str(error)})
