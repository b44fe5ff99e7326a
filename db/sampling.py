"""How a job's tokens are chosen, as it is kept in Postgres and handed to a worker. The API checks the ranges."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class StructuredOutput(BaseModel):
    """What the output must follow: a JSON schema as JSON, a regular expression, choices as a JSON list, a grammar."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str


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
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    logit_bias: dict[int, float] = {}  # by token id
    min_tokens: int = 0  # output tokens before which no end-of-sequence or stop token comes
    bad_words: tuple[tuple[int, ...], ...] = ()  # runs of token ids that are never completed
    structured_output: StructuredOutput | None = None
    n: int = 1  # outputs of the one prompt
    num_beams: int = 1  # above 1: they are the best that a beam search finds
    length_penalty: float = 1.0  # a beam's score is its log probability over its length to the power of this
    early_stopping: bool = False  # end a beam search once `num_beams` outputs have ended

    @property
    def num_seats(self) -> int:
        """Seats in the running batch that a job takes: all of its outputs are computed at once."""
        return max(self.n, self.num_beams)
