"""vLLM's engine without its server, in one process with its client, as a library has it.

Its own environment's interpreter runs this. Token ids are all that is asked of it: no text is made.
"""

from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext

from tests.bench.speed.stepped import News, SteppedTarget
from tests.bench.speed.workloads import Job


class VllmEngine:
    """What `vllm.LLM` steps."""

    def __init__(self, checkpoint: str, options: dict[str, Any]) -> None:
        self._engine = LLMEngine.from_engine_args(EngineArgs(model=checkpoint, **options), UsageContext.LLM_CLASS)

    @property
    def has_work(self) -> bool:
        return bool(self._engine.has_unfinished_requests())

    def add(self, job_id: str, job: Job) -> None:
        params = SamplingParams(
            max_tokens=job.max_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(job_id, {"prompt_token_ids": job.prompt}, params)

    def step(self) -> list[News]:
        return [
            News(each.request_id, len(each.outputs[0].token_ids), each.num_cached_tokens or 0, each.finished)
            for each in self._engine.step()
        ]

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def make_target(checkpoint: str, options: dict[str, Any]) -> SteppedTarget:
    """The engine, stepped; `options` are of `EngineArgs`."""
    return SteppedTarget(lambda: VllmEngine(checkpoint, options))
