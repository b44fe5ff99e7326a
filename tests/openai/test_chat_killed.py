"""A worker is killed in the middle of a function call that the unmodified `openai` client is being streamed."""

import json
from pathlib import Path
from typing import Any

import openai

from tests import chat_templates
from tests.servers import Servers
from tests.workers.service import running_service
from tests.workers.worker_process import WorkerProcess, make_settings

LONG_TEXT: Any = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 600, "maxLength": 700}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "write", "parameters": LONG_TEXT}}]


def test_a_streamed_call_goes_on_when_its_worker_is_killed(servers: Servers, tmp_path: Path) -> None:
    settings = make_settings(servers, tmp_path, dtype="float32", chat_template=chat_templates.QWEN)
    body: dict[str, Any] = {
        "model": settings.served_name,
        "messages": [{"role": "user", "content": "Write."}],
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_completion_tokens": 1000,
        "seed": 3,
    }
    with running_service(settings) as service, openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key) as sdk:
        with WorkerProcess(settings, tmp_path / "first.log") as first:
            [job_id] = service.jobs.submit([[5, 80]], max_tokens=1)  # before any row of a worker there is no model
            service.jobs.wait_ended([job_id])
            (whole,) = sdk.chat.completions.create(**body).choices[0].message.tool_calls or []
            stream = sdk.chat.completions.create(**body, stream=True)
            chunks = [next(stream) for _ in range(20)]
            first.kill()
        with WorkerProcess(settings, tmp_path / "second.log"):
            chunks += list(stream)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        arguments = "".join(call.function.arguments for call in calls)
        assert arguments == whole.function.arguments and len(json.loads(arguments)["text"]) >= 600
        assert [call.function.name for call in calls if call.id] == ["write"], "it begins once"
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        [job] = [row for row in service.client.get("/v1/jobs").json()["data"] if row["attempt"] > 1]
        assert job["kind"] == "chat"
