"""Clients as patient as a good one is: they submit with an idempotency key until it is accepted, at whichever API
answers, follow the stream from where they were cut off, poll, cancel some, and leave in the middle now and then."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.asker import PAUSE_SECONDS, Asker
from tests.chaos.recipes import Recipe

CANCELLED_SHARE, STREAMED_SHARE, LEAVING_SHARE = 0.15, 0.75, 0.3
TIERS = ("high", "normal", "low")


@dataclass
class Transcript:
    """What one client saw of one job."""

    key: str  # Idempotency-Key
    recipe: Recipe
    ids: set[str] = field(default_factory=set)  # of the job, from every answer to a submit
    is_cancelled: bool = False  # a cancel was sent
    is_streamed: bool = False
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)  # number, name, data
    end: dict[str, Any] | None = None  # the ended job, as stream or poll gave it


class Client:
    """One after the other, jobs of random kinds. What it does is a function of its seed and of what it meets."""

    def __init__(self, name: str, urls: Sequence[str], recipes: Sequence[Recipe], *, seed: str, hook_url: str) -> None:
        self._name = name
        self._recipes = recipes
        self._dice = random.Random(seed)
        self._hook_url = hook_url
        self._asker = Asker(name, urls, first=self._dice.randrange(len(urls)))
        self.transcripts: list[Transcript] = []

    @property
    def refusals(self) -> list[str]:
        return self._asker.refusals

    async def run(self, stop: asyncio.Event) -> None:
        """Begin jobs until `stop`, and return when the last one has ended."""
        async with self._asker:
            while not stop.is_set():
                transcript = Transcript(f"{self._name}-{len(self.transcripts)}", self._dice.choice(self._recipes))
                self.transcripts.append(transcript)
                await self._one(transcript)

    async def _one(self, transcript: Transcript) -> None:
        transcript.is_streamed = self._dice.random() < STREAMED_SHARE
        is_cancelled, after = self._dice.random() < CANCELLED_SHARE, self._dice.uniform(0.0, 1.0)
        await self._submit(transcript, tier=self._dice.choice(TIERS), repeats=self._dice.random() < 0.2)
        follow = self._stream if transcript.is_streamed else self._poll
        if not is_cancelled:
            await follow(transcript)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(follow(transcript))
            await asyncio.sleep(after)
            transcript.is_cancelled = True
            await self._asker.ask("POST", f"/v1/jobs/{next(iter(transcript.ids))}/cancel")

    async def _submit(self, transcript: Transcript, *, tier: str, repeats: bool) -> None:
        body = transcript.recipe.body | {"tier": tier, "webhook_url": f"{self._hook_url}/{transcript.key}"}
        for _ in range(2 if repeats else 1):
            headers = {"Idempotency-Key": transcript.key}
            response = await self._asker.ask("POST", "/v1/jobs", json=body, headers=headers)
            transcript.ids.add(response.json()["id"])

    async def _poll(self, transcript: Transcript) -> None:
        path = f"/v1/jobs/{next(iter(transcript.ids))}"
        while transcript.end is None:
            job = (await self._asker.ask("GET", path, headers={"Prefer": "wait=3"})).json()
            if job["ended_at"] is not None:
                transcript.end = job

    async def _stream(self, transcript: Transcript) -> None:
        path = f"/v1/jobs/{next(iter(transcript.ids))}/events"
        while transcript.end is None:
            headers = {"Last-Event-ID": str(transcript.events[-1][0])} if transcript.events else {}
            leave_at = self._dice.randrange(1, 200) if self._dice.random() < LEAVING_SHARE else None
            try:
                async with self._asker.http.stream("GET", self._asker.url + path, headers=headers) as response:
                    if response.status_code != 200:
                        self._asker.check(response.status_code, await response.aread())
                        raise httpx.TransportError(f"answered {response.status_code}")
                    await self._read(transcript, response, leave_at)
            except httpx.HTTPError:
                await asyncio.sleep(PAUSE_SECONDS)
            self._asker.turn()

    async def _read(self, transcript: Transcript, response: httpx.Response, leave_at: int | None) -> None:
        num_seen = 0
        async for number, name, data in events(response):
            transcript.events.append((number, name, data))
            if name not in ("job.queued", "job.started", "job.token"):
                transcript.end = data
            num_seen += 1
            if num_seen == leave_at:
                return


async def events(response: httpx.Response) -> AsyncIterator[tuple[int, str, dict[str, Any]]]:
    """Number, name and data of each whole server-sent event; comments are left out."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield int(fields["id"]), fields["event"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}
