"""What a wrong field is answered: which one it is, in `param`, and what is wrong, in words."""

from typing import Any

import pytest
from pydantic import ValidationError

from api.schemas import JobCreate

BODY: dict[str, Any] = {"model": "tiny", "prompt": "the mill wheel", "max_tokens": 8}
LATER, SOONER = "2100-01-02T12:00:00Z", "2100-01-02T12:59:59+01:00"
MESSAGE = {"role": "user", "content": "hi"}
TEXTLESS = {"type": "text"}


def nested(depth: int) -> dict[str, Any]:
    """A schema of lists of lists, so many objects deep."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


WRONG_IN_A_JOB: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": None}, "prompt", "exactly one of 'prompt' and 'messages'"),
    ({"messages": [MESSAGE]}, "messages", "exactly one of"),
    ({"prompt": None, "messages": [MESSAGE | {"content": [TEXTLESS]}]}, "messages[0].content[0].text", "is required"),
    ({"prompt": None, "messages": [5]}, "messages[0]", "must be an object"),
    ({"prompt": [1, "two"]}, "prompt[1]", "integer"),
    ({"prompt": [1, -1]}, "prompt[1]", "greater than or equal to 0"),
    ({"prompt": [1, 2, 2**31]}, "prompt[2]", "less than or equal to"),
    ({"prompt": ["two", 1]}, "prompt[0]", "integer"),
    ({"prompt": [1, 512]}, "prompt", "512 is out of range"),
    ({"prompt": []}, "prompt", "at least one"),
    ({"prompt": ""}, "prompt", "at least one"),
    ({"prompt": 5}, "prompt", "must be a text or a list of token ids"),
    ({"prompt": "a\x00b"}, "prompt", "U+0000"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_token": 4}, "max_token", "not a known field"),
    ({"str": 4}, "str", "'str' is not a known field"),
    ({"int": 4}, "int", "'int' is not a known field"),
    ({"a[b]": 4}, "a[b]", "'a[b]' is not a known field"),
    ({"<one>": 4}, "<one>", "'<one>' is not a known field"),
    ({"x" * 70: 4}, "x" * 64 + "...", "not a known field"),
    ({"tier": "urgent"}, "tier", "'high', 'normal' or 'low'"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"repetition_penalty": 0.009}, "repetition_penalty", "greater than or equal to 0.01"),
    ({"stop": [""]}, "stop[0]", "at least 1 character"),
    ({"stop": ["x"] * 17}, "stop", "list should have at most 16 items, not 17"),
    ({"stop": 5}, "stop", "must be a text or a list of texts"),
    ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1]", "integer"),
    ({"seed": 2**63}, "seed", "less than or equal to"),
    ({"logit_bias": [5]}, "logit_bias", "object of token ids"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "'five' is no token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1' is no token id"),
    ({"logit_bias": {"05": 1}}, "logit_bias", "'05' is no token id"),
    ({"logit_bias": {"²": 1}}, "logit_bias", "'²' is no token id"),
    ({"logit_bias": {"2147483648": 1}}, "logit_bias", "is no token id"),
    ({"logit_bias": {"1" * 5000: 1}}, "logit_bias", "is no token id"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias", "from -100 to 100"),
    ({"logit_bias": {"5": True}}, "logit_bias", "from -100 to 100"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "from -100 to 100"),
    ({"logit_bias": {"512": 1}}, "logit_bias", "token id 512; the vocabulary of 'tiny' has 512"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1,024 token ids, not 1,025"),
    ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
    ({"min_tokens": 9}, "min_tokens", "more than max_tokens, 8"),
    ({"bad_words": "word"}, "bad_words", "list"),
    ({"bad_words": ["a", 5]}, "bad_words[1]", "must be a text or a list of token ids"),
    ({"bad_words": [""]}, "bad_words[0]", "at least 1 character"),
    ({"bad_words": ["x" * 257]}, "bad_words[0]", "at most 256 characters"),
    ({"bad_words": [[]]}, "bad_words[0]", "at least 1 item"),
    ({"bad_words": [[1] * 65]}, "bad_words[0]", "at most 64 items"),
    ({"bad_words": [[1, "x"]]}, "bad_words[0][1]", "integer"),
    ({"bad_words": [[1, 512]]}, "bad_words", "token id 512"),
    ({"bad_words": ["x"] * 257}, "bad_words", "at most 256 items"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "less than or equal to 20"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 5}, "n", "'n' is 5; all of them run at once, and a worker of 'tiny' has 4 seats"),
    ({"n": 2, "num_beams": 5}, "num_beams", "'num_beams' is 5"),
    ({"n": 3, "num_beams": 2}, "n", "no more outputs than beams"),
    ({"num_beams": 17}, "num_beams", "less than or equal to 16"),
    ({"length_penalty": 2.0}, "length_penalty", "needs 'num_beams' above 1"),
    ({"early_stopping": True}, "early_stopping", "needs 'num_beams' above 1"),
    ({"structured_output": "json"}, "structured_output", "must be an object"),
    ({"structured_output": {}}, "structured_output", "exactly one of"),
    ({"structured_output": {"regex": "a", "choice": ["a"]}}, "structured_output", "exactly one of"),
    ({"structured_output": {"guided_json": {}}}, "structured_output.guided_json", "not a known field"),
    ({"structured_output": {"json_schema": "{}"}}, "structured_output.json_schema", "dictionary"),
    ({"structured_output": {"json_schema": nested(101)}}, "structured_output.json_schema", "more than 100 deep"),
    (
        {"structured_output": {"json_schema": {"const": "x" * 70_000}}},
        "structured_output.json_schema",
        "at most 65,536",
    ),
    ({"structured_output": {"regex": ""}}, "structured_output.regex", "at least 1 character"),
    ({"structured_output": {"regex": "a\x00"}}, "structured_output.regex", "U+0000"),
    ({"structured_output": {"choice": []}}, "structured_output.choice", "at least 1 item"),
    ({"structured_output": {"choice": ["a", ""]}}, "structured_output.choice[1]", "at least 1 character"),
    ({"structured_output": {"choice": ["a"] * 1025}}, "structured_output.choice", "at most 1024 items"),
    ({"structured_output": {"choice": ["x" * 800] * 100}}, "structured_output.choice", "at most 65,536"),
    ({"structured_output": {"grammar": "x" * 70_000}}, "structured_output.grammar", "at most 65536 characters"),
    ({"webhook_url": "ftp://host/x"}, "webhook_url", "http"),
    ({"metadata": {"k": 5}}, "metadata.k", "string"),
    ({"metadata": {"[key]": 5}}, "metadata.[key]", "string"),
    ({"start_by": "2026-01-01T12:00:00"}, "start_by", "RFC 3339 time with its offset"),
    ({"start_by": 4102444800}, "start_by", "RFC 3339 time with its offset"),
    ({"start_by": "2100-01-01"}, "start_by", "RFC 3339 time with its offset"),
    ({"start_by": "2100-13-01T12:00:00Z"}, "start_by", "month"),
    ({"finish_by": "2020-01-01T12:00:00Z"}, "finish_by", "has passed"),
    ({"start_by": LATER, "finish_by": SOONER}, "finish_by", "earlier than start_by"),
    ({"start_by": "9999-12-31T23:59:59-14:00"}, "start_by", "days ahead"),
    ({"run_for": 0}, "run_for", "greater than 0"),
    ({"model": None}, "model", "is required"),
]


async def test_a_wrong_field_of_a_job_is_named_in_a_400(client, worker) -> None:
    for change, param, words in WRONG_IN_A_JOB:
        reply = await client.post("/v1/jobs", json=BODY | change)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
        assert words in error["message"] and "after validation" not in error["message"]


WRONG_IN_A_COMPLETION: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 17}, "n", "less than or equal to 16"),
    ({"n": 2, "best_of": 3}, "best_of", "must be as 'n', 2"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "whole completion only"),
    ({"suffix": "end"}, "suffix", "'suffix': is not supported"),
    ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
    ({"prompt": [[1, "x"]]}, "prompt[0][1]", "integer"),
    ({"prompt": [1, [2]]}, "prompt[1]", "integer"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs 'stream'"),
    ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more", "not a known field"),
    ({"messages": []}, "messages", "not a known field"),
    ({"run_for": -1}, "run_for", "greater than 0"),
    ({"start_by": LATER, "finish_by": SOONER}, "finish_by", "earlier than start_by"),
]


async def test_a_wrong_or_unsupported_field_of_a_completion_is_named_in_a_400(client, worker) -> None:
    for change, param, words in WRONG_IN_A_COMPLETION:
        reply = await client.post("/v1/completions", json=BODY | change)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param), error
        assert words in error["message"]


def huge_values(size: int) -> list[tuple[str, Any, str | None]]:
    """A field, a value of `size` wrong parts, and which part is told."""
    message = {"role": "user", "content": "hi"}
    return [
        ("prompt", ["x"] * size, "prompt[0]"),
        ("prompt", [7] * 10 + ["x"] * size, "prompt[10]"),
        ("stop_token_ids", ["x"] * size, "stop_token_ids[0]"),
        ("messages", [5] * size, "messages[0]"),
        ("messages", [message | {"content": [5] * size}], "messages[0].content[0]"),
        ("messages", [message | {str(i): i for i in range(size)}], "messages[0]"),
        ("logit_bias", {f"x{i}": "x" for i in range(size)}, "logit_bias"),
        ("bad_words", [5] * size, "bad_words[0]"),
        ("bad_words", [["x"] * size], "bad_words[0][0]"),
        ("structured_output", {"choice": [5] * size}, "structured_output.choice[0]"),
        ("structured_output", {f"f{i}": 5 for i in range(size)}, "structured_output"),
        ("metadata", {str(i): i for i in range(size)}, "metadata"),
        ("metadata", {str(i): "v" for i in range(size)}, "metadata"),
    ]


def test_a_huge_wrong_value_costs_one_error_and_not_one_for_each_part() -> None:
    unknown = {"model": "tiny"} | {f"f{i}": i for i in range(100_000)}
    for body in (unknown, *({"model": "tiny", field: value} for field, value, _ in huge_values(100_000))):
        with pytest.raises(ValidationError) as refusal:
            JobCreate.model_validate(body)
        assert refusal.value.error_count() == 1


async def test_of_a_huge_wrong_value_the_first_wrong_part_is_told(client, worker) -> None:
    for field, value, param in huge_values(1_000):
        reply = await client.post("/v1/jobs", json={"model": "tiny", field: value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    unknown = await client.post("/v1/jobs", json=BODY | {f"f{i}": i for i in range(1_000)})
    assert "has 1,003 fields; at most 64" in unknown.json()["error"]["message"]


async def test_a_prompt_of_more_token_ids_than_any_model_takes_is_refused_before_it_is_looked_at(client) -> None:
    reply = await client.post("/v1/jobs", json={"model": "tiny", "prompt": [1] * (2**20 + 1)})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")
    assert "at most 1048576 items" in reply.json()["error"]["message"]
