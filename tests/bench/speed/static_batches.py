"""transformers as most scripts use it: what waits when the model is free is one batch, until its longest has ended."""

import asyncio
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from tests.bench.speed.trace import Trace
from tests.bench.speed.workloads import Job

MAX_BATCH = 64
WINDOW_SECONDS = 0.02  # for those that come together to meet


@dataclass(frozen=True)
class Waiting:
    """A job that is to be in a batch."""

    job: Job
    trace: Trace
    ended: asyncio.Future[None]


class StaticBatches:
    """A thread that generates batch after batch."""

    def __init__(self, checkpoint: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, attn_implementation="sdpa")
        self._model.eval()
        self._queue: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        threading.Thread(target=self._generate_on, daemon=True).start()

    async def run(self, job: Job, trace: Trace) -> None:
        """Raises what generating raises."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        trace.started_at = time.perf_counter()
        self._queue.put(Waiting(job, trace, ended))
        await ended

    async def close(self) -> None:
        """The process ends with the thread in it."""

    def _generate_on(self) -> None:
        while True:
            batch = [self._queue.get()]
            time.sleep(WINDOW_SECONDS)
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get())
            error: Exception = RuntimeError("generating ended before the job had its tokens")
            try:
                self._generate(batch)
            except Exception as raised:
                error = raised
            for each in batch:
                each.ended.get_loop().call_soon_threadsafe(_fail, each.ended, error)  # of those that have not ended

    @torch.inference_mode()
    def _generate(self, batch: list[Waiting]) -> None:
        longest = max(len(each.job.prompt) for each in batch)
        input_ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, each in enumerate(batch):  # filled up on the left
            input_ids[row, longest - len(each.job.prompt) :] = torch.tensor(each.job.prompt)
            mask[row, longest - len(each.job.prompt) :] = 1
        num_tokens = max(each.job.max_tokens for each in batch)
        config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        watchers = StoppingCriteriaList([_Watcher(batch)])
        self._model.generate(input_ids, attention_mask=mask, generation_config=config, stopping_criteria=watchers)


class _Watcher(StoppingCriteria):
    """Asked after every token whether to stop: it never does, and notes the token for each job that is not done."""

    def __init__(self, batch: list[Waiting]) -> None:
        self._batch = batch
        self._num_tokens = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        now = time.perf_counter()
        self._num_tokens += 1
        for each in self._batch:
            if self._num_tokens <= each.job.max_tokens:
                each.trace.add(now)
            if self._num_tokens == each.job.max_tokens:
                each.ended.get_loop().call_soon_threadsafe(each.ended.set_result, None)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def _fail(ended: asyncio.Future[None], error: Exception) -> None:
    if not ended.done():
        ended.set_exception(error)
