"""Every setting of every Headrace process, read once from `HEADRACE_*` variables and `.env`."""

import hashlib
import os
import re
import tempfile
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

TIERS = ("high", "normal", "low")  # level 0, 1, 2
MODEL_NAME_PATTERN = r"^[A-Za-z0-9._-]+$"
DEMO_MODEL_NAME = "gemma-3-270m"  # what serves when no model is named
MAX_SOCKET_PATH = 107  # bytes in sockaddr_un, less the terminating zero


class Settings(BaseSettings):
    """Frozen settings. The default of each lives here and nowhere else."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_file=".env", extra="ignore", frozen=True, protected_namespaces=()
    )

    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(8000, ge=1, le=65535, description="Port of the API.")
    flower_port: int = Field(5555, ge=1, le=65535, description="Port of the Flower dashboard.")
    flower_basic_auth: str | None = Field(None, description="`user:password` for Flower; required off loopback.")
    data_dir: Path = Field(Path(".headrace"), description="Where everything that must outlive a restart is kept.")
    api_key: str | None = Field(None, description="The first API key; made on first start when unset.")
    database_url: str | None = Field(None, description="PostgreSQL; unset starts the embedded server.")
    redis_url: str | None = Field(None, description="Redis or Valkey; unset starts the embedded server.")

    model: str | None = Field(None, description="Hub id, directory or GGUF file; unset serves the demo model.")
    model_name: str | None = Field(None, pattern=MODEL_NAME_PATTERN, description="Name the model is served under.")
    chat_template: str | None = Field(None, description="Jinja2 chat template, or a file that holds one.")
    dtype: str = Field(
        "auto",
        pattern="^(auto|float32|bfloat16|float16)$",
        description="Weights and KV cache; auto is float32 only where PyTorch computes, without bfloat16 in hardware.",
    )
    quantization: str | None = Field(
        None, pattern="^(int8|int4)$", description="Quantize the weights when they are loaded."
    )
    max_model_len: int | None = Field(None, ge=16, description="Longest prompt plus output, in tokens.")
    max_num_seqs: int = Field(32, ge=1, le=4096, description="Seats: sequences in the running batch.")
    token_budget: int = Field(512, ge=16, description="Most tokens computed in one step.")
    kv_cache_dtype: Literal["auto", "int8"] = Field(
        "auto", description="int8 takes about half the memory, on a CPU; auto is the dtype of the weights."
    )
    kv_cache_tokens: int = Field(32768, ge=64, description="Size of the KV cache on a CPU, in tokens.")
    num_threads: int = Field(0, ge=0, description="Compute threads on a CPU; 0 takes every core.")
    gpu_memory_share: float = Field(0.9, gt=0, le=1, description="Of a GPU's memory: weights, work and KV cache.")
    target_itl_ms: float | None = Field(
        None,
        gt=0,
        description="Longest time between two tokens of a running job; prompts are cut to keep it. Unset: about "
        "28, or three times what it is without prompts.",
    )
    engine_policy: str | None = Field(
        None,
        pattern="^(aging|fcfs|shortest_first)$",
        description="Order inside a worker; unset follows HEADRACE_QUEUE_POLICY.",
    )
    watermark_low: float = Field(0.01, ge=0, lt=1, description="Share of the KV cache kept free for running jobs.")
    watermark_high: float = Field(0.05, ge=0, lt=1, description="Share free again before others start after that.")
    embedding_pooling: Literal["mean", "last"] = Field(
        "mean", description="What an embedding is of: all hidden states of its text, or the last token's."
    )
    prefix_cache: bool = Field(True, description="Compute equal beginnings of prompts once.")
    prefix_cache_scope: str = Field("tenant", pattern="^(tenant|all)$", description="Who shares them with whom.")
    host_cache_gb: float = Field(0, ge=0, description="Host memory for KV blocks that leave the cache.")
    disk_cache_gb: float = Field(0, ge=0, description="Disk for those that leave that, in the data directory.")
    cache_policy: Literal["lru", "frequency"] = Field("lru", description="Which blocks these two keep.")
    overlap: bool = Field(False, description="Plan a step while the one before computes; on a GPU always.")

    drain_seconds: float = Field(30, ge=0, description="How long a stopping worker finishes jobs before handing back.")
    lease_seconds: float = Field(30, gt=0, description="A worker unheard of for this long loses its jobs.")
    renew_seconds: float = Field(10, gt=0, description="How often a worker renews its lease.")
    sweep_seconds: float = Field(5, gt=0, description="How often the sweep repairs what fell between two stores.")
    aging_threshold_seconds: float = Field(30, ge=0, description="Wait before a queued job starts to age.")
    aging_boost: float = Field(0.5, ge=0, description="Levels gained per second of waiting beyond the threshold.")
    queue_policy: str = Field("aging", pattern="^(aging|fcfs)$", description="Order of waiting jobs.")
    key_window: int = Field(64, ge=1, description="Jobs of one key that may be ready at once, per tier.")
    max_queued_jobs: int = Field(100_000, ge=1, description="Unstarted jobs per model and tier; beyond it, 429.")
    max_queued_jobs_per_key: int = Field(
        50_000, ge=1, description="Unstarted jobs of one key, and as many lines of its batches; beyond it, 429."
    )
    max_queued_tokens: int = Field(
        100_000_000, ge=1, description="Tokens, of prompts and max_tokens, of those jobs; beyond it, 429."
    )
    max_queued_tokens_per_key: int = Field(50_000_000, ge=1, description="The same of one key's jobs; beyond it, 429.")
    requests_per_minute: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Submits of one key in a minute; beyond it, 429. Unset: any number."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, le=2**31 - 1, description="Tokens, of prompts and max_tokens, of those; beyond it, 429."
    )
    concurrent_jobs: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Queued and running jobs of one key, lines of batches aside; beyond it, 429. Unset: any number.",
    )
    retention_days: int = Field(30, ge=1, description="Ended jobs are kept this long.")
    files_url: str | None = Field(
        None, description="Where files are kept: a directory, or a URL that fsspec knows; unset: the data directory."
    )
    batch_window: int = Field(256, ge=1, description="Lines of one batch that may be in the queue or run at once.")

    webhook_allow_private: bool = Field(False, description="Deliver webhooks to private addresses too.")
    webhook_timeout_seconds: float = Field(20, gt=0, description="Longest one delivery attempt may take.")
    log_level: str = Field("INFO", description="Level of every process's log.")

    @cached_property
    def socket_dir(self) -> Path:
        """Directory of the embedded servers' sockets: in the data directory, or a short one where a URL needs it."""
        inside = (self.data_dir / "run").resolve()
        is_short = len(os.fsencode(inside / ".s.PGSQL.5432.lock")) <= MAX_SOCKET_PATH
        if is_short and re.fullmatch(r"[A-Za-z0-9/._-]+", str(inside)):
            return inside
        digest = hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{digest}"

    @property
    def served_name(self) -> str:
        """The model's name in the API: as set, else the last part of its path or hub id, without a file's suffix."""
        if self.model_name is not None:
            return self.model_name
        last = DEMO_MODEL_NAME if self.model is None else self.model.rstrip("/").rpartition("/")[2]
        return re.sub(r"[^A-Za-z0-9._-]", "-", last.removesuffix(".gguf")) or "model"

    @property
    def resolved_database_url(self) -> str:
        """SQLAlchemy URL of PostgreSQL through psycopg 3."""
        if self.database_url is None:
            return f"postgresql+psycopg://headrace@/headrace?host={self.socket_dir}"
        scheme, separator, rest = self.database_url.partition("://")
        if scheme in ("postgres", "postgresql"):
            scheme = "postgresql+psycopg"
        return f"{scheme}{separator}{rest}"

    @property
    def resolved_redis_url(self) -> str:
        """redis-py URL (`redis://`, `rediss://` or `unix://`)."""
        return self.redis_url or f"unix://{self.socket_dir}/valkey.sock"

    @property
    def resolved_files_url(self) -> str:
        """Where files are kept: a URL, or a directory from the root on."""
        if self.files_url is not None and "://" in self.files_url:
            return self.files_url
        return str(Path(self.files_url or self.data_dir / "files").resolve())

    @property
    def broker_url(self) -> str:
        """The same server as kombu spells it."""
        url = self.resolved_redis_url
        return "redis+socket://" + url.removeprefix("unix://") if url.startswith("unix://") else url


@lru_cache
def get_settings() -> Settings:
    """The process's settings; call `get_settings.cache_clear()` in a test that changes the environment."""
    return Settings()
