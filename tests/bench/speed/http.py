"""A server that is measured through POST /v1/completions as OpenAI has it: prompts as token ids, streamed, greedy."""

import json
import time
from collections.abc import Iterator
from typing import Any

import aiohttp

from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job

TIMEOUT_SECONDS = 600.0


class HttpTarget:
    """A connection for each job, as many clients would have."""

    def __init__(self, url: str, model: str, *, key: str | None = None) -> None:
        self._model = model
        self._url = f"{url}/v1/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: aiohttp.ClientSession | None = None  # made within the event loop

    async def run(self, job: Job, trace: Trace) -> None:
        """Raises RuntimeError for an error that the server answers, or streams."""
        trace.started_at = time.perf_counter()
        async with self._session().post(self._url, json=self._body(job), headers=self._headers) as response:
            if response.status != 200:
                raise RuntimeError(f"HTTP {response.status}: {(await response.read())[:300]!r}")
            pending, usage = b"", dict[str, Any]()
            async for piece in response.content.iter_any():
                now = time.perf_counter()
                *frames, pending = (pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in _events(frames):
                    usage = event.get("usage") or usage
                    if _has_token(event):
                        trace.add(now)
        _correct(trace, usage)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_SECONDS)
            self._client = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._client

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
