"""What jobs wrote: `job_outputs`, one row a job, and the tokens in it.

An ended job's row is its output. A job that waits to run again has one too: what was delivered of it when it left its
worker. So an end without a worker, and the next attempt, know of it also when Redis has lost the stream.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from db.models import JobOutput
from db.stream import Token
from db.texts import storable

COLUMNS = (
    *("text", "token_ids", "text_offsets", "logprobs", "choices", "finish_reasons", "prompt_logprobs"),
    "embedding",
)
NAMES = ", ".join(COLUMNS)
RECORD = """text text, token_ids int[], text_offsets int[], logprobs jsonb, choices int[], finish_reasons text[],
            prompt_logprobs jsonb, embedding real[]"""  # them, in JSON
REPLACED = ", ".join(f"{column} = EXCLUDED.{column}" for column in COLUMNS)
WRITE = f"""
    INSERT INTO job_outputs (job_id, {NAMES})
    SELECT job_id, {NAMES} FROM jsonb_to_recordset(:outputs) AS written(job_id uuid, {RECORD})
    ON CONFLICT (job_id) DO UPDATE SET {REPLACED}
"""
WRITE_ENDED = text(WRITE).bindparams(bindparam("outputs", type_=JSONB))
WRITE_DELIVERED = text(
    f"{WRITE} WHERE cardinality(job_outputs.token_ids) < cardinality(EXCLUDED.token_ids)"
).bindparams(bindparam("outputs", type_=JSONB))


def write(session: Session, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Store ended jobs' outputs, by the names of the columns; what was kept of earlier attempts gives way."""
    if outputs:
        session.execute(WRITE_ENDED, {"outputs": outputs})


def keep(session: Session, delivered: Mapping[UUID, Sequence[Token]]) -> None:
    """Store what jobs that go back to the queue have delivered, unless more is there: tokens only ever follow."""
    outputs = [row_of(job_id, tokens) for job_id, tokens in delivered.items() if tokens]
    if outputs:
        session.execute(WRITE_DELIVERED, {"outputs": outputs})


def kept(session: Session, job_ids: Collection[UUID]) -> dict[UUID, list[Token]]:
    """The tokens in the rows of these jobs; those without a row are left out."""
    if not job_ids:
        return {}
    rows = session.scalars(select(JobOutput).where(JobOutput.job_id.in_(job_ids)))
    return {row.job_id: tokens_of(row) for row in rows}


def num_kept(session: Session, job_ids: Collection[UUID]) -> dict[UUID, int]:
    """How many tokens those are."""
    statement = select(JobOutput.job_id, func.cardinality(JobOutput.token_ids)).where(JobOutput.job_id.in_(job_ids))
    return dict(session.execute(statement).tuples().all())


def longer(tokens: Sequence[Token], kept: Sequence[Token]) -> list[Token]:
    """All that was delivered, of what the stream and the row say: one of them begins with the other."""
    return list(tokens if len(tokens) >= len(kept) else kept)


def row_of(job_id: UUID, tokens: Sequence[Token]) -> dict[str, Any]:
    """Delivered tokens as an output of which no worker tells more."""
    texts = [token.text for token in tokens]
    logprobs = [token.logprobs for token in tokens]
    choices = [token.choice for token in tokens]
    return {
        "job_id": str(job_id),
        "text": storable("".join(texts)),
        "token_ids": [token.token_id for token in tokens],
        "text_offsets": list(accumulate(map(len, texts))),
        "logprobs": logprobs if any(logprobs) else None,
        "choices": choices if any(choices) else None,
    }


def tokens_of(output: JobOutput | None) -> list[Token]:
    """The output as the stream had it, so that events read later are the events that were sent."""
    if output is None:
        return []
    num_tokens = len(output.token_ids)
    starts = [0, *output.text_offsets][:num_tokens]
    logprobs, choices = output.logprobs or [None] * num_tokens, output.choices or [0] * num_tokens
    fields = zip(output.token_ids, starts, output.text_offsets, logprobs, choices, strict=True)
    return [
        Token(token_id, output.text[start:end], logprob, choice) for token_id, start, end, logprob, choice in fields
    ]
