"""A job whose worker was killed in mid-sentence goes on as if nothing had been: same tokens, text, offsets, logprobs.

A worker runs every case undisturbed, runs them again and is killed when each has delivered a chosen number of tokens.
A new worker finishes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import pytest

from db.models import Job, JobOutput
from db.sampling import Sampling, StructuredOutput
from db.stream import Token
from tests.servers import Servers
from tests.workers.condemned import condemn
from tests.workers.worker_process import GREEDY, Jobs, WorkerProcess, make_settings, wait_until

NUM_TOKENS = 40
CUT = 17  # tokens delivered at the kill, where the case does not ask for a certain one
FREE = Sampling(temperature=1.0, ignore_eos=True)
BEAMS = GREEDY.model_copy(update={"n": 2, "num_beams": 4, "logprobs": 0})
PROMPT = [5, 80, 33, 7]
NUM_SEEDS = 24  # tried for an output with a character cut in two: one in three has one


@dataclass(frozen=True)
class Case:
    """One job, and how many tokens it has delivered when its worker dies."""

    sampling: Sampling
    num_delivered: int = CUT
    seed: int = 11


@dataclass(frozen=True)
class Run:
    """What became of a case's job."""

    row: Job
    output: JobOutput
    delivered: list[Token]


@dataclass(frozen=True)
class Resumed:
    """The cases, and each one's undisturbed run, what was delivered at the kill, and the run that was cut in two."""

    cases: dict[str, Case]
    whole: dict[str, Run]
    at_kill: dict[str, list[Token]]
    resumed: dict[str, Run]


@pytest.fixture(scope="module")
def resumed(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resumed]:
    directory = tmp_path_factory.mktemp("resume")
    settings = make_settings(servers, directory, max_num_seqs=40, dtype="float32")
    jobs = Jobs(settings)
    with WorkerProcess(settings, directory / "dying.log", app="tests.workers.dying_app") as dying:
        cases = make_cases(jobs)
        whole = runs(jobs, dict(zip(cases, submit(jobs, list(cases.values())), strict=True)))
        dying.freeze()
        job_ids = dict(zip(cases, submit(jobs, list(cases.values())), strict=True))
        condemn(jobs.redis, {job_ids[name]: case.num_delivered for name, case in cases.items()})
        dying.thaw()
        wait_until(lambda: dying.process.poll() is not None, "the worker to die")
        at_kill = {name: jobs.delivered(job_id) for name, job_id in job_ids.items()}
        assert {row.status for row in jobs.rows(list(job_ids.values()))} == {"running"}, dying.log
    with WorkerProcess(settings, directory / "second.log"):
        yield Resumed(cases, whole, at_kill, runs(jobs, job_ids))
    jobs.close()


def make_cases(jobs: Jobs) -> dict[str, Case]:
    """Every case by its name. Where to cut those that depend on the text is read off undisturbed outputs."""
    outputs = [jobs.output(job_id) for job_id in ended(jobs, [Case(FREE, seed=seed) for seed in range(NUM_SEEDS)])]
    seed, num_before_character = find_split_character(outputs)
    stop_seed, held, stop = find_stop_string(outputs)
    with_stop, never = FREE.model_copy(update={"stop": (stop,)}), held + "\N{SNOWMAN}"
    penalties = {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.3}
    return {
        "greedy": Case(GREEDY),
        "before the first token": Case(GREEDY, num_delivered=0),
        "seeded sampling": Case(FREE, seed=-5),
        "top_p and top_k": Case(FREE.model_copy(update={"top_p": 0.9, "top_k": 40}), seed=2**62),
        "min_p": Case(FREE.model_copy(update={"min_p": 0.02, "temperature": 0.7})),
        "a stop string cut in two": Case(with_stop, seed=stop_seed),
        "held text that is no stop string": Case(FREE.model_copy(update={"stop": (never,)}), seed=stop_seed),
        "the text of both": Case(FREE, seed=stop_seed),
        "penalties": Case(GREEDY.model_copy(update=penalties)),
        "penalties and sampling": Case(FREE.model_copy(update=penalties)),
        "logprobs": Case(FREE.model_copy(update={"logprobs": 3})),
        "a character cut in two": Case(FREE, seed=seed, num_delivered=num_before_character),
        "everything delivered": Case(GREEDY, num_delivered=NUM_TOKENS),
        "delivered up to the stop string": Case(with_stop, seed=stop_seed, num_delivered=CUT + 3),
        "a JSON schema": Case(structured("json_schema", '{"type": "string", "minLength": 200}')),
        "a regular expression": Case(structured("regex", "([a-z]{1,3} ){40}"), seed=5),
        "bias, bad words and min_tokens": Case(
            FREE.model_copy(
                update={
                    "logit_bias": {7: 5.0, 8: 5.5, 9: 5.0},
                    "bad_words": ((7, 8), (8, 9, 7), (8, 8, 8)),
                    "min_tokens": 30,
                    "ignore_eos": False,
                }
            )
        ),
        "three outputs": Case(FREE.model_copy(update={"n": 3, "logprobs": 1}), num_delivered=2 * NUM_TOKENS),
        "three outputs that end one after the other": Case(
            FREE.model_copy(update={"n": 3, "stop_token_ids": tuple(range(0, 512, 16))}), num_delivered=20
        ),
        "three outputs of a JSON schema": Case(
            structured("json_schema", '{"type": "string", "minLength": 200}').model_copy(update={"n": 3})
        ),
        "a beam search": Case(BEAMS, num_delivered=0),
        "a beam search that was telling its outputs": Case(BEAMS, num_delivered=5),
        "everything together": Case(
            FREE.model_copy(update=penalties | {"top_p": 0.95, "logprobs": 2, "stop": ("\N{SNOWMAN}",)})
        ),
    }


def structured(kind: Literal["json_schema", "regex"], text: str) -> Sampling:
    return FREE.model_copy(update={"structured_output": StructuredOutput(kind=kind, text=text)})


def find_split_character(outputs: Sequence[JobOutput]) -> tuple[int, int]:
    """The first seed whose output has a character of two tokens, and how many tokens are out in its middle."""
    for seed, output in enumerate(outputs):
        offsets = [0, *output.text_offsets]
        for index in range(5, NUM_TOKENS - 5):
            is_held = offsets[index] == offsets[index - 1] and output.token_ids[index - 1] > 2  # 0 to 2 have no text
            character = output.text[offsets[index] : offsets[index + 1]][:1]
            if is_held and character not in ("", "\N{REPLACEMENT CHARACTER}"):
                return seed, index
    raise AssertionError(f"none of {NUM_SEEDS} seeds gives a character of two tokens")


def find_stop_string(outputs: Sequence[JobOutput]) -> tuple[int, str, str]:
    """The first seed with a text that tokens around the cut make and no others: its part before the cut, and all."""
    for seed, output in enumerate(outputs):
        start, cut, end = (output.text_offsets[index] for index in (CUT - 3, CUT - 1, CUT + 2))
        stop = output.text[start:end]
        if start < cut < output.text_offsets[CUT] <= end and stop[0] not in output.text[:start] + stop[1:]:
            return seed, output.text[start:cut], stop
    raise AssertionError(f"none of {NUM_SEEDS} seeds gives a text that occurs once")


def submit(jobs: Jobs, cases: Sequence[Case]) -> list[UUID]:
    return [jobs.submit([PROMPT], sampling=case.sampling, seed=case.seed, max_tokens=NUM_TOKENS)[0] for case in cases]


def ended(jobs: Jobs, cases: Sequence[Case]) -> list[UUID]:
    job_ids = submit(jobs, cases)
    jobs.wait_ended(job_ids)
    return job_ids


def runs(jobs: Jobs, job_ids: dict[str, UUID]) -> dict[str, Run]:
    jobs.wait_ended(list(job_ids.values()))
    return {name: Run(jobs.row(each), jobs.output(each), jobs.delivered(each)) for name, each in job_ids.items()}


def test_resumed_jobs_end_with_the_tokens_text_offsets_and_logprobs_of_undisturbed_ones(resumed: Resumed) -> None:
    for name, whole in resumed.whole.items():
        assert result(resumed.resumed[name]) == result(whole), name


def test_stream_holds_what_was_delivered_before_the_kill_once_and_goes_on_behind_it(resumed: Resumed) -> None:
    for name, case in resumed.cases.items():
        at_kill, run = resumed.at_kill[name], resumed.resumed[name]
        assert len(at_kill) == case.num_delivered, name
        assert run.delivered[: len(at_kill)] == at_kill, name
        assert [token.token_id for token in run.delivered] == run.output.token_ids, name
        assert "".join(token.text for token in run.delivered) == run.output.text, name


def test_text_that_was_held_back_at_the_kill_is_shown_after_it_or_ends_the_job(resumed: Resumed) -> None:
    plain = resumed.whole["the text of both"].output
    before = plain.text[: plain.text_offsets[CUT - 3]]
    for name in ("a stop string cut in two", "held text that is no stop string"):
        assert "".join(token.text for token in resumed.at_kill[name]) == before, name
    stopped = resumed.resumed["a stop string cut in two"]
    assert (stopped.row.finish_reason, stopped.output.text) == ("stop", before)
    assert resumed.resumed["held text that is no stop string"].output.text == plain.text
    assert resumed.at_kill["a character cut in two"][-1].text == ""


def test_the_outputs_of_one_job_end_each_at_its_own_length(resumed: Resumed) -> None:
    output = resumed.resumed["three outputs that end one after the other"].output
    assert output.choices is not None and output.finish_reasons is not None
    lengths = [output.choices.count(choice) for choice in range(3)]
    assert len(set(lengths)) > 1 and "stop" in output.finish_reasons and sum(lengths) > 20
    searched = resumed.resumed["a beam search"].output
    assert searched.choices == [0, 1] * NUM_TOKENS


def test_a_kill_is_charged_only_to_the_job_that_had_delivered_nothing(resumed: Resumed) -> None:
    for name, case in resumed.cases.items():
        row = resumed.resumed[name].row
        assert (row.attempt, row.crashes) == (2, 1 if case.num_delivered == 0 else 0), name


def result(run: Run) -> dict[str, Any]:
    row, output = run.row, run.output
    return {
        "status": row.status,
        "finish_reason": row.finish_reason,
        "num_output_tokens": row.num_output_tokens,
        "token_ids": output.token_ids,
        "text": output.text,
        "text_offsets": output.text_offsets,
        "logprobs": output.logprobs,
        "choices": output.choices,
        "finish_reasons": output.finish_reasons,
        "stream": run.delivered,
    }
