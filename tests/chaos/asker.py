"""Asks one API after the other until one takes what is asked, as a patient client does."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import httpx

from tests.chaos.world import KEY

TIMEOUT = httpx.Timeout(5.0)  # a stream silent for that long is opened again, at the other API
PAUSE_SECONDS = 0.2


class Asker:
    """Connections to the APIs, one of which is asked now. Open while it is an asynchronous context."""

    def __init__(self, name: str, urls: Sequence[str], *, first: int) -> None:
        self._name = name
        self._urls = urls
        self._turn = first % len(urls)
        self.refusals: list[str] = []  # answers that no fault of a store excuses

    async def __aenter__(self) -> Self:
        self.http = httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=TIMEOUT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    @property
    def url(self) -> str:
        """Of the API that is asked now."""
        return self._urls[self._turn]

    def turn(self) -> None:
        """Ask the next one from now on."""
        self._turn = (self._turn + 1) % len(self._urls)

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Ask until one answers with a success; `request` goes to httpx."""
        while True:
            try:
                response = await self.http.request(method, self.url + path, **request)
            except httpx.HTTPError:
                response = None
            if response is not None and response.is_success:
                return response
            if response is not None:
                self.check(response.status_code, response.content)
            self.turn()
            await asyncio.sleep(PAUSE_SECONDS)

    def check(self, status_code: int, body: bytes) -> None:
        """A full queue and a store that is away are told so; every other refusal is a fault."""
        if status_code not in (429, 503):
            self.refusals.append(f"{self._name}: {status_code} {body[:300]!r}")
