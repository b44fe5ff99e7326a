"""A server that is measured through POST /v1/completions as OpenAI has it: prompts as token ids, streamed, greedy."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job

TIMEOUT_SECONDS = 600.0


class HttpTarget:
    """A connection for each job, as many clients would have."""

    def __init__(self, url: str, model: str, *, key: str | None = None) -> None:
        self._model = model
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=TIMEOUT_SECONDS,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def run(self, job: Job, trace: Trace) -> None:
        """Raises RuntimeError for an error that the server answers, or streams."""
        trace.started_at = time.perf_counter()
        async with self._client.stream("POST", "/v1/completions", json=self._body(job)) as response:
            if response.status_code != 200:
                raise RuntimeError(f"HTTP {response.status_code}: {(await response.aread())[:300]!r}")
            pending, usage = b"", dict[str, Any]()
            async for piece in response.aiter_raw():
                now = time.perf_counter()
                *frames, pending = (pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in _events(frames):
                    usage = event.get("usage") or usage
                    if _has_token(event):
                        trace.add(now)
        _correct(trace, usage)

    async def close(self) -> None:
        await self._client.aclose()

    def _body(self, job: Job) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": job.prompt,
            "max_tokens": job.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _events(frames: list[bytes]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        data = frame.removeprefix(b"data:").strip()
        if not frame.startswith(b"data:") or data == b"[DONE]":
            continue
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise RuntimeError(str(event["error"])[:300])
        yield event


def _has_token(event: dict[str, Any]) -> bool:
    """A last piece that only says why it ended brings none."""
    return any(choice.get("text") or not choice.get("finish_reason") for choice in event.get("choices", ()))


def _correct(trace: Trace, usage: dict[str, Any]) -> None:
    """Let the usage have the last word on how many tokens came: pieces may be empty, or hold several."""
    num_output: int = usage.get("completion_tokens", 0)
    trace.num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    num_pieces = len(trace.stamps)
    if not num_output or not num_pieces:
        return
    if num_pieces > num_output:  # those without text came first
        del trace.stamps[: num_pieces - num_output], trace.counts[: num_pieces - num_output]
    for i in range(num_output - num_pieces):
        trace.counts[1 + i % (num_pieces - 1) if num_pieces > 1 else 0] += 1
