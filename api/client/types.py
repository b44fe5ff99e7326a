"""What the client sends and gets, for type checkers; /docs says what each field means. At run time all are plain
dicts."""

from datetime import datetime
from typing import Any, Literal, TypedDict

Json = dict[str, Any]
Tier = Literal["high", "normal", "low"]
Status = Literal["queued", "running", "succeeded", "failed", "cancelled", "expired", "dead"]
EndedStatus = Literal["succeeded", "failed", "cancelled", "expired", "dead"]
Moment = datetime | str  # with its offset; as text RFC 3339
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class JobFields(TypedDict, total=False):
    """The fields of POST /v1/jobs beside its prompt or messages."""

    kind: Literal["job", "embedding"]
    model: str
    tier: Tier
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    stop: str | list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    seed: int
    n: int
    num_beams: int
    length_penalty: float
    early_stopping: bool
    logprobs: int
    prompt_logprobs: int
    logit_bias: dict[str, float]
    bad_words: list[str | list[int]]
    structured_output: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: dict[str, Any]
    stream: bool
    webhook_url: str
    metadata: dict[str, str]
    start_by: Moment
    finish_by: Moment
    run_for: float


class JobFilter(TypedDict, total=False):
    """Which jobs to list."""

    status: Status
    tier: Tier
    model: str
    metadata: dict[str, str]
    since: Moment
    until: Moment
    replayed: bool


class ReplayFilter(TypedDict, total=False):
    """Which ended jobs to replay, and the limits in time of their replays."""

    status: EndedStatus
    tier: Tier
    model: str
    metadata: dict[str, str]
    since: Moment
    until: Moment
    include_replayed: bool
    start_by: Moment
    finish_by: Moment
    run_for: float


class TokenLogprobs(TypedDict):
    """One token's log probability."""

    logprob: float
    top: list[tuple[int, float]]


class CalledFunction(TypedDict):
    """The function that a call names, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call that the model made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class OneOutput(TypedDict):
    """A text that the model wrote; of a job with tools, also what is left of it without its calls, and these."""

    text: str
    content: str | None
    tool_calls: list[ToolCall] | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None


class Choice(OneOutput):
    """One of several outputs."""

    index: int


class Output(OneOutput):
    """What a job wrote; of several outputs, the first."""

    choices: list[Choice] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    embedding: list[float] | None


class Usage(TypedDict):
    """Tokens counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class Estimate(TypedDict):
    """When a queued job will probably start."""

    start_in_seconds: float
    start_at: str
    earliest: str
    latest: str


class JobError(TypedDict):
    """Why a job did not succeed."""

    code: str
    message: str


class Crash(TypedDict):
    """An attempt that ended with its worker."""

    attempt: int
    worker_id: str
    worker: str | None
    at: str
    tokens: int


class Job(TypedDict):
    """A job as it stands. Times are RFC 3339."""

    id: str
    object: Literal["job"]
    kind: Literal["job", "completion", "chat", "response", "embedding"]
    model: str
    status: Status
    tier: Tier
    created_at: str
    ready_at: str | None
    started_at: str | None
    ended_at: str | None
    attempt: int
    position: int | None
    estimate: Estimate | None
    output: Output | None
    usage: Usage | None
    error: JobError | None
    crashes: list[Crash]
    replay_of: str | None
    metadata: dict[str, str]
    webhook_url: str | None
    start_by: str | None
    finish_by: str | None
    run_for: float | None
    stream: bool
    seed: int
    max_tokens: int
    n: int
    links: dict[str, str]


class Replay(TypedDict):
    """What became of one job that was to be replayed: the new job's id, or why it was refused."""

    job_id: str
    replay_id: str | None
    error: dict[str, Any] | None


class BatchError(TypedDict):
    """What is wrong with a batch's input."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(TypedDict):
    """Why a batch failed."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(TypedDict):
    """How far a batch is."""

    total: int
    completed: int
    failed: int


class BatchState(TypedDict):
    """A batch as it stands. Times are Unix times in seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: dict[str, Any] | None
    metadata: dict[str, str] | None
