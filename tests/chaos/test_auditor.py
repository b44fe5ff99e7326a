"""An auditor that finds nothing is believed only because it finds what is there."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.auditor import Row, Verdict, check_end, check_events, check_hooks, check_stream, check_text
from tests.chaos.batches import BatchTranscript, check_batch
from tests.chaos.clients import Transcript
from tests.chaos.faults import Fault, Happened
from tests.chaos.hooks import Received
from tests.chaos.recipes import Recipe

RECIPE = Recipe(0, {}, token_ids=[5, 6], text="ab")
ROW = Row("job_1", "succeeded", "ab", [5, 6], error="")
EVENTS = [("evt_1", "job.succeeded")]
TOKENS = [(2, 5, "a"), (3, 6, "b")]  # event number, token id, text


def make_transcript(tokens: Sequence[tuple[int, int, str]] = TOKENS, status: str = "succeeded") -> Transcript:
    """A stream with these tokens, told to have ended with that status."""
    events: list[tuple[int, str, dict[str, Any]]] = [(0, "job.queued", {}), (1, "job.started", {})]
    for number, token_id, text in tokens:
        events.append((number, "job.token", {"index": number - 2, "token_id": token_id, "text": text}))
    end = {"status": status, "output": {"token_ids": [5, 6], "text": "ab"}}
    return Transcript("key", RECIPE, {"job_1"}, is_streamed=True, events=[*events, (4, f"job.{status}", end)], end=end)


def received(at: float, *, event_id: str = "evt_1", is_valid: bool = True) -> Received:
    return Received(event_id, json.dumps({"type": "job.succeeded"}).encode(), at, is_valid)


def audit(
    transcript: Transcript, row: Row, *, events: list[tuple[str, str]], hooks: list[Received], happened: list[Happened]
) -> Verdict:
    verdict = Verdict()
    check_end(verdict, transcript, row)
    check_text(verdict, transcript, row)
    check_stream(verdict, transcript, row)
    check_events(verdict, row, events)
    check_hooks(verdict, row, events, hooks, happened)
    return verdict


def faults_of(verdict: Verdict) -> set[str]:
    return {kind for kind, count in verdict.counts.items() if count}


def test_a_job_that_went_well_is_faultless() -> None:
    verdict = audit(make_transcript(), ROW, events=EVENTS, hooks=[received(1)], happened=[])

    assert faults_of(verdict) == set()


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(TOKENS[1:], id="gap"),
        pytest.param([TOKENS[0], *TOKENS], id="repeat"),
        pytest.param([TOKENS[0], (3, 6, "x")], id="text"),
        pytest.param([TOKENS[0], (3, 7, "b")], id="token"),
    ],
)
def test_a_stream_that_differs_from_the_stored_text_is_broken(tokens: list[tuple[int, int, str]]) -> None:
    verdict = audit(make_transcript(tokens), ROW, events=EVENTS, hooks=[received(1)], happened=[])

    assert faults_of(verdict) == {"broken_streams"}


def test_a_text_that_differs_from_the_undisturbed_one_is_wrong() -> None:
    row = Row("job_1", "succeeded", "ac", [5, 7], error="")
    verdict = audit(make_transcript([TOKENS[0], (3, 7, "c")]), row, events=EVENTS, hooks=[received(1)], happened=[])

    assert faults_of(verdict) == {"wrong_texts"}


@pytest.mark.parametrize("status", ["running", "failed", "cancelled"])
def test_an_end_that_nobody_asked_for_is_a_loss(status: str) -> None:
    row = Row("job_1", status, "ab", [5, 6], error="")
    events = [("evt_1", "job.succeeded")]
    verdict = audit(make_transcript(), row, events=events, hooks=[received(1)], happened=[])

    assert {"lost", "twice"} <= faults_of(verdict)  # and the client was told of another end


def test_two_ends_are_one_too_many() -> None:
    events = [*EVENTS, ("evt_2", "job.succeeded")]
    hooks = [received(1), received(2, event_id="evt_2")]

    assert faults_of(audit(make_transcript(), ROW, events=events, hooks=hooks, happened=[])) == {"twice"}


def test_an_event_that_did_not_come_or_is_not_valid_is_missing() -> None:
    for hooks in ([], [received(1, is_valid=False)]):
        verdict = audit(make_transcript(), ROW, events=EVENTS, hooks=hooks, happened=[])

        assert faults_of(verdict) == {"webhooks_missing"}


@pytest.mark.parametrize(
    ("target", "is_excused"), [("tasks-1", True), ("postgres-link", True), ("engine-1", False), ("valkey", False)]
)
def test_an_event_comes_again_only_after_its_sender_was_hit(target: str, is_excused: bool) -> None:
    hit = Happened(Fault(0, "kill", target, 0), began=10, ended=11)
    verdict = audit(make_transcript(), ROW, events=EVENTS, hooks=[received(9), received(200)], happened=[hit])

    assert faults_of(verdict) == (set() if is_excused else {"webhooks_double"})
    assert verdict.num_repeats == int(is_excused)


def line_of(name: str, text: str) -> str:
    return json.dumps({"custom_id": name, "response": {"body": {"choices": [{"text": text}]}}})


def failed_line(name: str, code: str) -> str:
    said = {"custom_id": name, "response": {"body": {"error": {"code": code}}}}
    return json.dumps(said, separators=(",", ":"))


def batch_of(
    output: list[str], errors: Sequence[str] = (), *, seen: Sequence[str] = (), status: str = "completed"
) -> BatchTranscript:
    """An ended batch of two lines whose text is "ab"."""
    counts = {"total": 2, "completed": len(output), "failed": len(errors)}
    read = {json.loads(line)["custom_id"]: line for line in seen}
    end = {"status": status, "request_counts": counts}
    return BatchTranscript("batch_1", {"x": RECIPE, "y": RECIPE}, read, end, output, list(errors))


X, Y = line_of("x", "ab"), line_of("y", "ab")


@pytest.mark.parametrize(
    ("batch", "faults"),
    [
        pytest.param(batch_of([X, Y], seen=[X]), set(), id="well"),
        pytest.param(batch_of([X], [failed_line("y", "crashed")]), set(), id="dead"),
        pytest.param(batch_of([X]), {"lost"}, id="lost"),
        pytest.param(batch_of([X], [failed_line("y", "engine_error")]), {"lost"}, id="failed"),
        pytest.param(batch_of([X, Y], status="failed"), {"lost"}, id="ended otherwise"),
        pytest.param(batch_of([X, Y, Y]), {"twice", "lost"}, id="twice"),  # and the counts are of three
        pytest.param(batch_of([X, Y], seen=[line_of("y", "ac")]), {"twice"}, id="told otherwise"),
        pytest.param(batch_of([X, line_of("y", "ac")]), {"wrong_texts"}, id="another text"),
    ],
)
def test_each_line_of_a_batch_is_answered_once_and_as_in_peace(batch: BatchTranscript, faults: set[str]) -> None:
    verdict = Verdict()
    check_batch(verdict, batch)

    assert faults_of(verdict) == faults
