"""From a model's name to an engine that runs it. Called on the engine thread: it imports torch and takes its time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from db.settings import Settings
from workers import capacity
from workers.capacity import Capacity
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.model_plan import LoadFailed, ModelPlan, make_plan
from workers.models.errors import ModelError
from workers.models.fingerprint import fingerprint
from workers.text.chat_template import TRANSCRIPT
from workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.engine.runner import Model
    from workers.models.decoder import Decoder
    from workers.models.recorded import RecordedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Card:
    """What the API must know of the model before its weights are loaded; copied into the worker's row."""

    model: str
    tokenizer_path: Path
    chat_template: str | None
    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    dtype: str


@dataclass(frozen=True)
class LoadedModel:
    """An engine ready to step, and the tokenizer of its tokens."""

    engine: Engine
    tokenizer: Tokenizer
    is_shared: bool = False  # whether what one tenant's prompts computed is found by another's
    shares_processors: bool = False  # it computes on those that tell of its tokens
    pooling: Literal["mean", "last"] = "mean"  # what makes an embedding of hidden states


def load(settings: Settings, *, on_card: Callable[[Card], None], clock: Callable[[], float]) -> LoadedModel:
    """Load the model that the settings name. `on_card` is called as soon as its shape is known. Raises LoadFailed.

    `clock` says Unix seconds as the rows' `ready_at` does.
    """
    try:
        return _load(settings, on_card, clock)
    except (ModelError, OSError, ValueError) as error:  # what the files of a model may be to blame for
        raise LoadFailed(str(error)) from error


def _load(settings: Settings, on_card: Callable[[Card], None], clock: Callable[[], float]) -> LoadedModel:
    plan, has = make_plan(settings), None
    if plan.is_on_cpu:  # known before the weights are read, so that jobs can be sent meanwhile
        has = plan.capacity_of(settings.kv_cache_tokens // plan.block_size)
        on_card(_card(plan, has))
    told = {"model": settings.served_name, "path": str(plan.path), "dtype": str(plan.dtype)}
    log.info("loading the model", extra=told)
    tokenizer = Tokenizer.load(plan.model_card.tokenizer_path.resolve())
    packing = plan.packing()
    decoder = _decoder(plan, packing)
    model = decoder if packing is None or has is None else _recorded(decoder, has)
    if has is None:
        has = plan.capacity_of(_blocks_that_fit(plan, model))
        on_card(_card(plan, has))
    return LoadedModel(
        _engine(plan, has, model, packing, clock),
        tokenizer,
        is_shared=settings.prefix_cache_scope == "all",
        shares_processors=plan.is_on_cpu,
        pooling=settings.embedding_pooling,
    )


def _decoder(plan: ModelPlan, packing: str | None) -> "Decoder":
    from workers.models.loader import load_model
    from workers.models.packings import AS_STORED

    return load_model(
        plan.path,
        cache_dir=plan.cache_dir,
        dtype=plan.dtype,
        device=plan.device,
        packing=packing,
        quantization=None if plan.is_on_cpu else plan.settings.quantization or AS_STORED,
    )


def _recorded(decoder: "Decoder", has: Capacity) -> "RecordedModel":
    import torch

    from kernels.cpu.threads import shared
    from workers.models.recorded import RecordedModel

    threads = shared()
    torch.set_num_threads(1)  # what is left to it is small, and its threads would wait beside ours
    max_rows = has.token_budget + has.max_num_seqs  # with those of a prompt whose log probabilities are asked for
    return RecordedModel(
        decoder,
        threads,
        max_tokens=has.token_budget,
        max_rows=max_rows,
        max_positions=has.max_model_len,
    )


def _blocks_that_fit(plan: ModelPlan, model: "Model") -> int:
    """In a GPU's memory, beside the weights and what a step takes."""
    import torch

    free, total = capacity.warm_up(
        model,
        plan.settings,
        block_size=plan.block_size,
        dtype=plan.kv_dtype,
        device=plan.device,
        free_memory=torch.cuda.mem_get_info,
    )
    share = plan.settings.gpu_memory_share
    return capacity.blocks_that_fit(free, total, share=share, bytes_per_block=plan.block_bytes)


def _engine(plan: ModelPlan, has: Capacity, model: "Model", packing: str | None, clock: Callable[[], float]) -> Engine:
    from workers.engine.build import build_engine

    return build_engine(
        _engine_config(plan, has),
        model,
        device=plan.device,
        dtype=plan.kv_dtype,
        weights=_weights(plan.path, plan.dtype, plan.settings.quantization, packing),
        has_graphs=not any(plan.model_card.config.experts),
        clock=clock,
    )


def _card(plan: ModelPlan, has: Capacity) -> Card:
    model_card = plan.model_card
    return Card(
        model=plan.settings.served_name,
        tokenizer_path=model_card.tokenizer_path.resolve(),
        chat_template=_chat_template(plan),
        max_model_len=has.max_model_len,
        max_num_seqs=has.max_num_seqs,
        block_size=has.block_size,
        num_blocks=has.num_blocks,
        vocab_size=model_card.config.vocab_size,
        bos_token=model_card.bos_token,
        eos_token=model_card.eos_token,
        dtype=str(plan.dtype).removeprefix("torch."),
    )


def _chat_template(plan: ModelPlan) -> str | None:
    """The setting (a template, or a file that holds one) before the model's own; the demo model has none."""
    asked = plan.settings.chat_template
    if asked is None:
        return TRANSCRIPT if plan.settings.model is None else plan.model_card.chat_template
    is_template = "{" in asked or "\n" in asked
    return asked if is_template else Path(asked).read_text()


def _engine_config(plan: ModelPlan, has: Capacity) -> EngineConfig:
    settings = plan.settings
    disk_bytes = int(settings.disk_cache_gb * capacity.GIB)
    return EngineConfig(
        max_num_seqs=has.max_num_seqs,
        token_budget=has.token_budget,
        max_model_len=has.max_model_len,
        block_size=has.block_size,
        num_blocks=has.num_blocks,
        vocab_size=plan.model_card.config.vocab_size,
        eos_token_ids=frozenset(plan.model_card.eos_token_ids),
        policy=settings.engine_policy or settings.queue_policy,
        aging_threshold_seconds=settings.aging_threshold_seconds,
        aging_boost=settings.aging_boost,
        watermark_low=settings.watermark_low,
        watermark_high=settings.watermark_high,
        target_itl_ms=settings.target_itl_ms,
        is_caching=settings.prefix_cache,
        host_blocks=has.host_blocks,
        host_policy=settings.cache_policy,
        disk_path=settings.data_dir / "kv-cache" if disk_bytes else None,
        disk_bytes=disk_bytes,
        is_overlapping=settings.overlap or not plan.is_on_cpu,
    )


def _weights(path: Path, *how: object) -> str:
    """What changes when the model's files do, or how they are computed: another packing has other K and V."""
    files = fingerprint(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return repr((files, *map(str, how)))
