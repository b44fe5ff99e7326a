"""Batches in a storm: clients that upload files and have them run, and what must have become of each line."""

import json
import random
from asyncio import Event, sleep
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.asker import Asker
from tests.chaos.auditor import Verdict
from tests.chaos.recipes import Recipe

NUM_LINES = 24
LOOK_SECONDS = 0.5
ENDS = ("completed", "failed", "expired", "cancelled")
DEAD = '"code":"crashed"'  # in the line of a job that took three workers with it


@dataclass
class BatchTranscript:
    """What one client saw of one batch."""

    id: str
    recipes: dict[str, Recipe]  # by custom id
    seen: dict[str, str] = field(default_factory=dict)  # lines of its output while it ran, by custom id
    end: dict[str, Any] | None = None
    output: list[str] = field(default_factory=list)  # lines, at the end
    errors: list[str] = field(default_factory=list)


class BatchClient:
    """One batch after the other. Its files' lines are a function of its seed."""

    def __init__(self, name: str, urls: Sequence[str], recipes: Sequence[Recipe], *, seed: str) -> None:
        self._recipes = recipes
        self._dice = random.Random(seed)
        self._asker = Asker(name, urls, first=self._dice.randrange(len(urls)))
        self.transcripts: list[BatchTranscript] = []

    @property
    def refusals(self) -> list[str]:
        return self._asker.refusals

    async def run(self, stop: Event) -> None:
        """Begin batches until `stop`, and return when the last one has ended."""
        async with self._asker:
            while not stop.is_set():
                transcript = await self._begin()
                self.transcripts.append(transcript)
                while transcript.end is None:
                    await sleep(LOOK_SECONDS)
                    await self._look(transcript)

    async def _begin(self) -> BatchTranscript:
        recipes = {f"line-{number}": self._dice.choice(self._recipes) for number in range(NUM_LINES)}
        lines = [
            {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": recipe.body}
            for custom_id, recipe in recipes.items()
        ]
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        file = await self._asker.ask(
            "POST", "/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}
        )
        body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = await self._asker.ask("POST", "/v1/batches", json=body)
        return BatchTranscript(batch.json()["id"], recipes)

    async def _look(self, transcript: BatchTranscript) -> None:
        batch = (await self._asker.ask("GET", f"/v1/batches/{transcript.id}")).json()
        output = await self._lines(batch["output_file_id"])
        if batch["status"] in ENDS:
            transcript.output, transcript.errors = output, await self._lines(batch["error_file_id"])
            transcript.end = batch
        transcript.seen |= {json.loads(line)["custom_id"]: line for line in output}

    async def _lines(self, file_id: str | None) -> list[str]:
        if file_id is None:
            return []
        return (await self._asker.ask("GET", f"/v1/files/{file_id}/content")).text.splitlines()


def check_batch(verdict: Verdict, transcript: BatchTranscript) -> None:
    """It is complete; each line was answered once, as in peace, and what could be read while it ran is in the end."""
    if transcript.end is None or transcript.end["status"] != "completed":
        verdict.lost.append(f"{transcript.id} is {transcript.end and transcript.end['status']}")
        return
    answers = {json.loads(line)["custom_id"]: line for line in transcript.output}
    times = Counter(json.loads(line)["custom_id"] for line in transcript.output + transcript.errors)
    verdict.lost += [f"{transcript.id} has no {name}" for name in sorted(transcript.recipes.keys() - times.keys())]
    verdict.twice += [f"{transcript.id} has {name} {count} times" for name, count in times.items() if count > 1]
    verdict.twice += [
        f"{transcript.id} told {name} otherwise" for name, line in transcript.seen.items() if answers.get(name) != line
    ]
    for name, line in answers.items():
        recipe = transcript.recipes[name]
        if json.loads(line)["response"]["body"]["choices"][0]["text"] != recipe.text:
            verdict.wrong_texts.append(f"{transcript.id}: {name} (recipe {recipe.number})")
    for line in transcript.errors:
        if DEAD not in line:
            verdict.lost.append(f"{transcript.id}: {line}")
    counts = transcript.end["request_counts"]
    expected = {"total": len(transcript.recipes), "completed": len(answers), "failed": len(transcript.errors)}
    if counts != expected:
        verdict.lost.append(f"{transcript.id} counts {counts}, and has {expected}")
