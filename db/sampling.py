"""How a job's tokens are chosen, as it is kept in Postgres and handed to a worker. The API checks the ranges."""

from pydantic import BaseModel, ConfigDict


class Sampling(BaseModel):
    """Sampling parameters, all but the seed and the number of tokens, which are the job's own columns."""

    model_config = ConfigDict(frozen=True)

    temperature: float = 1.0  # 0 takes the most likely token
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # 0: of the chosen token only
