"""Each field that chooses tokens, from the HTTP body to what a worker is handed."""

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.api.hand_worker import uuid_of
from workers.text.tokenizer import Tokenizer

BODY: dict[str, Any] = {"model": "tiny", "prompt": [5, 6], "max_tokens": 8}
FIELDS: list[tuple[str, Any, Any]] = [  # field, as sent, as claimed
    ("temperature", 0.25, 0.25),
    ("top_p", 0.5, 0.5),
    ("top_k", 40, 40),
    ("min_p", 0.125, 0.125),
    ("frequency_penalty", -1.5, -1.5),
    ("presence_penalty", 1.5, 1.5),
    ("repetition_penalty", 0.01, 0.01),
    ("stop", "end", ("end",)),
    ("stop", ["a", "\n\n"], ("a", "\n\n")),
    ("stop_token_ids", [3, 9], (3, 9)),
    ("ignore_eos", True, True),
    ("logprobs", 0, 0),
    ("logprobs", 5, 5),
    ("prompt_logprobs", 0, 0),
    ("logit_bias", {"7": -100, "511": 1.5}, {7: -100.0, 511: 1.5}),
    ("min_tokens", 8, 8),
    ("bad_words", [[5, 6], [7]], ((5, 6), (7,))),
    ("structured_output", {"regex": "a+"}, {"kind": "regex", "text": "a+"}),
    ("structured_output", {"choice": ["no", "ja"]}, {"kind": "choice", "text": '["no", "ja"]'}),
    ("structured_output", {"grammar": 'start: "a"'}, {"kind": "grammar", "text": 'start: "a"'}),
    (
        "structured_output",
        {"json_schema": {"const": "\0ü"}},
        {"kind": "json_schema", "text": '{"const": "\\u0000\\u00fc"}'},
    ),
    ("seed", -(2**63), -(2**63)),
    ("n", 3, 3),
    ("num_beams", 4, 4),
]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/completions"])
@pytest.mark.parametrize(("field", "sent", "claimed"), FIELDS)
async def test_a_field_reaches_the_worker_as_sent_and_changes_no_other(
    client, worker, path: str, field: str, sent: Any, claimed: Any
) -> None:
    handed = [await claim(client, worker, path, change) for change in ({}, {field: sent})]
    seeds = [job.seed for job in handed]
    default, changed = ({**job.sampling.model_dump(), "seed": None} for job in handed)
    if field == "seed":
        assert (seeds[1], changed) == (claimed, default)
    else:
        assert changed == default | {field: claimed}
        assert default[field] != claimed


async def claim(client, worker, path: str, change: dict[str, Any]):
    """What a worker is handed for BODY with that change."""
    asking = asyncio.create_task(client.post(path, json=BODY | change))
    while not (jobs := (await client.get("/v1/jobs?status=queued")).json()["data"]):
        assert not asking.done() or asking.result().is_success, asking.result().text
    (job,) = jobs
    claimed = worker.start(job["id"])
    assert (claimed.id, claimed.max_tokens, claimed.prompt_token_ids) == (uuid_of(job["id"]), 8, [5, 6])
    worker.say(job["id"], " x", logprobs="logprobs" in change)
    worker.end(job["id"])
    assert (await asking).is_success
    return claimed


async def test_a_bad_word_is_kept_as_the_model_spells_it_at_the_beginning_and_after_a_space(
    client, worker, tokenizer_path: str
) -> None:
    tokenizer = Tokenizer.load(tokenizer_path)
    claimed = await claim(client, worker, "/v1/jobs", {"bad_words": ["wheel", " the", [9], "wheel"]})
    expected = [tuple(tokenizer.encode(text)) for text in ("wheel", " wheel", " the")]
    assert claimed.sampling.bad_words == (*expected, (9,))
    assert "".join(tokenizer.decode(word) for word in expected) == "wheel wheel the"


async def test_a_completion_takes_the_limits_in_time_that_a_job_takes(client, worker) -> None:
    moment = datetime.now(timezone(timedelta(hours=1))) + timedelta(days=1)
    limits = {"start_by": moment.isoformat(), "finish_by": (moment + timedelta(hours=1)).isoformat(), "run_for": 2.5}
    now = (await client.post("/v1/jobs", json=BODY | limits)).json()
    assert now["status"] == "queued", now
    await client.post(f"/v1/jobs/{now['id']}/cancel")
    asking = asyncio.create_task(client.post("/v1/completions", json=BODY | limits))
    while not (jobs := (await client.get("/v1/jobs?status=queued")).json()["data"]):
        assert not asking.done(), asking.result().text
    names = (*limits, "kind", "stream")
    assert [jobs[0][name] for name in names] == [*(now[name] for name in limits), "completion", False]
    assert datetime.fromisoformat(now["start_by"]) == moment
    worker.run(jobs[0]["id"], " x")
    assert (await asking).status_code == 200
