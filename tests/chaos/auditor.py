"""After the storm: is everything that was promised so? Reads Postgres, the transcripts, the webhook receiver's log, the
stores and the processes, and says what is wrong in sentences."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from db.ids import public_id
from db.stream import ENDED_SECONDS
from tests.chaos.clients import Transcript
from tests.chaos.faults import Happened
from tests.chaos.hooks import Hooks, Received
from tests.chaos.process import num_fds
from tests.chaos.world import World

ENDED = ("succeeded", "failed", "cancelled", "expired", "dead")
EXCUSED_SECONDS = 5.0  # a fault that ended so long before a sending may still have its effects
NEVER = -1  # Redis: the key has no end
MAX_FDS_GROWN = 25  # two full connection pools; a leak in a storm is hundreds

ROWS = text("""
    SELECT jobs.id, status, key, num_output_tokens, text, token_ids, crashes, attempt, error_code, error_message
    FROM jobs JOIN idempotency_keys ON job_id = jobs.id LEFT JOIN job_outputs ON job_outputs.job_id = jobs.id
""")
EVENTS = text("SELECT id, job_id, type FROM webhook_events WHERE job_id IS NOT NULL")
COUNTS = {  # what must be nought when nothing is under way
    "jobs without an idempotency key": "SELECT count(*) - {num_recipes} FROM jobs"
    " WHERE batch_id IS NULL AND NOT EXISTS (SELECT FROM idempotency_keys WHERE job_id = jobs.id)",
    "rows queued or running": "SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')",
    "jobs of no line": "SELECT count(*) FROM jobs WHERE batch_id IS NOT NULL AND NOT EXISTS"
    " (SELECT FROM batch_lines WHERE batch_lines.batch_id = jobs.batch_id AND batch_lines.job_id = jobs.id)",
    "batches that are not completed": "SELECT count(*) FROM batches WHERE status <> 'completed'",
    "deliveries on their way": "SELECT count(*) FROM webhook_deliveries WHERE status <> 'delivered'",
    # Between two statements of its transaction a process that lives, as those that look around do, is no such time.
    "transactions left open": "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    " AND state_change < clock_timestamp() - interval '3 seconds'",
}


@dataclass
class Verdict:
    """What is wrong, in sentences, by kind. All empty: nothing is."""

    lost: list[str] = field(default_factory=list)  # accepted, and not ended as it should
    twice: list[str] = field(default_factory=list)  # accepted or ended twice
    wrong_texts: list[str] = field(default_factory=list)
    broken_streams: list[str] = field(default_factory=list)
    webhooks_missing: list[str] = field(default_factory=list)
    webhooks_double: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # by the API, without a store to excuse it
    left_over: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    num_unclosed: int = 0  # streams of workers that were killed between a job's end and its stream's: gone in a day
    num_repeats: int = 0  # webhooks that came again after their sender was hit: allowed

    KINDS = ("lost", "twice", "wrong_texts", "broken_streams", "webhooks_missing", "webhooks_double")
    KINDS_TOO = ("refused", "left_over")

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(getattr(self, kind)) for kind in (*self.KINDS, *self.KINDS_TOO)}

    @property
    def sentences(self) -> Iterable[str]:
        for kind in (*self.KINDS, *self.KINDS_TOO):
            yield from (f"{kind}: {sentence}" for sentence in getattr(self, kind))


@dataclass(frozen=True)
class Row:
    """An accepted job as Postgres has it."""

    job_id: str
    status: str
    text: str
    token_ids: list[int]
    error: str


class Auditor:
    """`idle` and `fds` are what workers said and processes held in peace, before the storm."""

    def __init__(self, world: World, *, num_recipes: int, idle: dict[str, dict[str, Any]], fds: dict[str, int]) -> None:
        self._world = world
        self._num_recipes = num_recipes
        self._idle = idle
        self._fds = fds

    def audit(self, transcripts: list[Transcript], hooks: Hooks, happened: list[Happened]) -> Verdict:
        """The verdict, once everything is quiet."""
        verdict = Verdict()
        rows, events = self._rows(), self._events()
        for transcript in transcripts:
            mine = rows.get(transcript.key, [])
            if len(mine) > 1 or len(transcript.ids) > 1:
                verdict.twice.append(f"{transcript.key} is {len(mine)} jobs, answered as {sorted(transcript.ids)}")
            if not mine:
                if transcript.ids:
                    verdict.lost.append(f"{transcript.key} was accepted as {transcript.ids} and has no row")
                continue
            verdict.statuses[mine[0].status] += 1
            check_end(verdict, transcript, mine[0])
            check_text(verdict, transcript, mine[0])
            check_stream(verdict, transcript, mine[0])
            check_events(verdict, mine[0], events.get(mine[0].job_id, []))
            check_hooks(verdict, mine[0], events.get(mine[0].job_id, []), hooks.received[transcript.key], happened)
        self._check_left_over(verdict)
        return verdict

    def _rows(self) -> dict[str, list[Row]]:
        rows = defaultdict(list)
        with self._world.engine.connect() as connection:
            for row in connection.execute(ROWS):
                error = f"{row.error_code}: {row.error_message} (attempt {row.attempt}, {row.crashes} crashes)"
                job = Row(public_id("job_", row.id), row.status, row.text or "", row.token_ids or [], error)
                rows[row.key].append(job)
        return rows

    def _events(self) -> dict[str, list[tuple[str, str]]]:
        """By job: (event id, type)."""
        events = defaultdict(list)
        with self._world.engine.connect() as connection:
            for row in connection.execute(EVENTS):
                events[public_id("job_", row.job_id)].append((public_id("evt_", row.id), row.type))
        return events

    def _check_left_over(self, verdict: Verdict) -> None:
        for what, sql in COUNTS.items():
            count = self._world.ask(sql.format(num_recipes=self._num_recipes))
            if count != 0:
                verdict.left_over.append(f"{count} {what}")
        client = self._world.redis
        verdict.left_over += [f"list {key.decode()}" for key in client.scan_iter("generate.*")]
        for key in client.scan_iter("stream:*"):
            seconds = client.ttl(key)
            if seconds == NEVER:
                verdict.left_over.append(f"{key.decode()} lives for ever")
            verdict.num_unclosed += seconds > ENDED_SECONDS
        stats = self._world.inspect()
        for name, idle in self._idle.items():
            now = stats.get(name, {})
            for what in ("held", "running", "waiting", "free_seats", "free_blocks"):
                if now.get(what) != idle[what]:
                    verdict.left_over.append(f"{name} says {what} {now.get(what)}, and {idle[what]} before the storm")
        for name, num_before in self._fds.items():
            num_now = num_fds(self._world.processes[name].pid)
            if num_now > num_before + MAX_FDS_GROWN:
                verdict.left_over.append(f"{name} has {num_now} file descriptors, and {num_before} before the storm")


def check_end(verdict: Verdict, transcript: Transcript, row: Row) -> None:
    """It ended as it was asked to, and its client was told so."""
    may_be = {"succeeded", "dead"} | ({"cancelled"} if transcript.is_cancelled else set())
    if row.status not in may_be:
        verdict.lost.append(f"{row.job_id} is {row.status}: {row.error}")
    if transcript.end is not None and transcript.end["status"] != row.status:
        verdict.twice.append(f"{row.job_id} was told to be {transcript.end['status']} and is {row.status}")


def check_text(verdict: Verdict, transcript: Transcript, row: Row) -> None:
    """The stored text is that of an undisturbed run, or its beginning where the job was cut short."""
    recipe = transcript.recipe
    is_whole = row.status == "succeeded"
    expected = recipe.token_ids if is_whole else recipe.token_ids[: len(row.token_ids)]
    if row.token_ids != expected or (is_whole and row.text != recipe.text):
        at = next((i for i, (a, b) in enumerate(zip(row.token_ids, expected, strict=False)) if a != b), None)
        numbers = f"{len(row.token_ids)} tokens for {len(expected)}, different from token {at} on"
        verdict.wrong_texts.append(f"{row.job_id} (recipe {recipe.number}, {row.status}): {numbers}")
    output = (transcript.end or {}).get("output")
    if output is not None and (output["token_ids"], output["text"]) != (row.token_ids, row.text):
        verdict.wrong_texts.append(f"{row.job_id} was told another text than is stored")


def check_stream(verdict: Verdict, transcript: Transcript, row: Row) -> None:
    """The events are contiguous, and their tokens the stored ones."""
    if not transcript.is_streamed:
        return
    numbers = [number for number, _, _ in transcript.events]
    tokens = [data for _, name, data in transcript.events if name == "job.token"]
    faults = []
    if numbers != list(range(len(numbers))):
        gap = next(i for i, number in enumerate(numbers) if number != i)
        faults.append(f"event {gap} has number {numbers[gap]}")
    if [token["index"] for token in tokens] != list(range(len(tokens))):
        faults.append("token indices are not contiguous")
    if [token["token_id"] for token in tokens] != row.token_ids:
        faults.append(f"{len(tokens)} tokens, and {len(row.token_ids)} are stored")
    if "".join(token["text"] for token in tokens) != row.text:
        faults.append("the text is not the stored one")
    if transcript.end is None:
        faults.append("it has no end")
    if faults:
        verdict.broken_streams.append(f"{row.job_id} ({row.status}): {'; '.join(faults)}")


def check_events(verdict: Verdict, row: Row, events: list[tuple[str, str]]) -> None:
    """An end is one event."""
    if row.status in ENDED and len(events) > 1:
        verdict.twice.append(f"{row.job_id} has the events {events}")


def check_hooks(
    verdict: Verdict, row: Row, events: list[tuple[str, str]], received: list[Received], happened: list[Happened]
) -> None:
    """The event came, valid; and again only where its sender could not know that it had."""
    by_id: dict[str, list[Received]] = defaultdict(list)
    for one in received:
        by_id[one.event_id].append(one)
    expected = {event_id for event_id, type_ in events if type_ == f"job.{row.status}"}
    if not expected or set(by_id) != expected:
        kind = verdict.webhooks_double if set(by_id) - expected else verdict.webhooks_missing
        kind.append(f"{row.job_id} ({row.status}) has the events {events}, and {sorted(by_id)} came")
    if any(not one.is_valid or one.data["type"] != f"job.{row.status}" for one in received):
        verdict.webhooks_missing.append(f"{row.job_id}: an event that came is not valid, or of another end")
    for event_id, copies in by_id.items():
        for earlier, later in zip(copies, copies[1:], strict=False):
            if earlier.body == later.body and _was_sender_hit(earlier, later, happened):
                verdict.num_repeats += 1
            else:
                verdict.webhooks_double.append(
                    f"{row.job_id}: {event_id} came again after {later.at - earlier.at:.1f} s"
                )


def _was_sender_hit(earlier: Received, later: Received, happened: list[Happened]) -> bool:
    """Whether, about when the first copy came, a tasks worker was hit or cut off from where it notes what it did."""
    return any(
        one.fault.target.startswith(("tasks", "postgres"))
        and one.began <= min(later.at, earlier.at + EXCUSED_SECONDS)
        and one.ended >= earlier.at - EXCUSED_SECONDS
        for one in happened
    )
