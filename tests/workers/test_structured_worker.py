"""What chooses and restricts tokens, in a real worker process: each job as it asked, side by side."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from db.models import JobOutput
from db.sampling import Sampling, StructuredOutput
from tests.servers import Servers
from tests.workers.worker_process import Jobs, WorkerProcess, make_settings, prompts

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mill": {"type": "string", "maxLength": 12},
        "sacks": {"type": "integer", "minimum": 0, "maximum": 9999},
        "is_ground": {"type": "boolean"},
        "kinds": {"type": "array", "items": {"enum": ["rye", "oats", "wheat"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["mill", "sacks", "is_ground", "kinds"],
    "additionalProperties": False,
}
MOST_TOKENS = 200


@pytest.fixture(scope="module")
def jobs(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    directory = tmp_path_factory.mktemp("structured")
    settings = make_settings(servers, directory, dtype="float32")
    with WorkerProcess(settings, directory / "worker.log") as worker:
        jobs = Jobs(settings)
        yield jobs
        jobs.close()
        assert worker.terminate() == 0, worker.log


def run(jobs: Jobs, *samplings: Sampling, max_tokens: int = 40) -> list[JobOutput]:
    """The outputs of jobs that run together, one for each way to sample."""
    job_ids = [
        jobs.submit(prompts(1), sampling=sampling, seed=seed, max_tokens=max_tokens)[0]
        for seed, sampling in enumerate(samplings)
    ]
    assert [row.status for row in jobs.wait_ended(job_ids)] == ["succeeded"] * len(samplings)
    return [jobs.output(job_id) for job_id in job_ids]


def structured(kind: Any, text: str, **fields: Any) -> Sampling:
    return Sampling(structured_output=StructuredOutput(kind=kind, text=text), **fields)


def test_jobs_with_a_json_schema_end_with_json_that_it_allows(jobs: Jobs) -> None:
    job_ids = [
        jobs.submit(
            prompts(1),
            sampling=structured("json_schema", json.dumps(SCHEMA), temperature=temperature),
            seed=seed,
            max_tokens=MOST_TOKENS,
        )[0]
        for seed, temperature in enumerate([0.0, 0.5, 1.0, 1.0, 1.0, 2.0])
    ]
    rows = jobs.wait_ended(job_ids)
    assert [(row.status, row.finish_reason) for row in rows] == [("succeeded", "stop")] * len(rows)
    texts = {jobs.output(job_id).text for job_id in job_ids}
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(texts) > 3


def test_regex_choice_and_grammar_jobs_run_beside_free_ones_that_they_do_not_change(jobs: Jobs) -> None:
    free = Sampling(temperature=1.0, ignore_eos=True)
    [alone] = run(jobs, free)
    beside, by_regex, by_choice, by_grammar = run(
        jobs,
        free,
        structured("regex", "[a-z]{2,5}@[a-z]{2,5}"),
        structured("choice", '["rye", "oats", "Müller 🌊"]'),
        structured("grammar", 'start: ("ab" | "cd")~2..6 "!"'),
    )
    assert beside.token_ids == alone.token_ids
    assert re.fullmatch("[a-z]{2,5}@[a-z]{2,5}", by_regex.text)
    assert by_choice.text in ("rye", "oats", "Müller 🌊")
    assert re.fullmatch("(ab|cd){2,6}!", by_grammar.text)


def test_bias_bad_words_and_min_tokens_do_what_they_say(jobs: Jobs) -> None:
    greedy = Sampling(temperature=0.0)
    [plain] = run(jobs, greedy.model_copy(update={"ignore_eos": True}))
    first = plain.token_ids[0]
    biased, without, ended, longer = run(
        jobs,
        greedy.model_copy(update={"logit_bias": {70: 100.0}}),
        greedy.model_copy(update={"bad_words": ((first,),)}),
        greedy.model_copy(update={"logit_bias": {0: 100.0}}),
        greedy.model_copy(update={"logit_bias": {0: 100.0}, "min_tokens": 12}),
    )
    assert set(biased.token_ids) == {70}
    assert first not in without.token_ids
    assert ended.token_ids == [0]
    assert len(longer.token_ids) == 13 and longer.token_ids.index(0) == 12


def test_a_grammar_that_the_worker_cannot_compile_fails_its_job_alone(jobs: Jobs) -> None:
    [bad] = jobs.submit(prompts(1), sampling=structured("regex", "(a"))
    [good] = jobs.submit(prompts(1), sampling=structured("regex", "a{5}"))
    failed, succeeded = jobs.wait_ended([bad, good])
    assert (failed.status, failed.error_code) == ("failed", "grammar_failed")
    assert "unclosed group" in (failed.error_message or "")
    assert (succeeded.status, jobs.output(good).text) == ("succeeded", "aaaaa")
