"""From a model's name to an engine that runs it. Called on the engine thread: it imports torch and takes its time."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from db.settings import Settings
from workers import capacity
from workers.capacity import Capacity
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.models.demo import demo_model_path
from workers.models.errors import ModelError
from workers.models.fingerprint import fingerprint
from workers.models.location import resolve
from workers.text.chat_template import TRANSCRIPT
from workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from workers.models.card import ModelCard
    from workers.models.decoder import Decoder
    from workers.models.recorded import RecordedModel

log = logging.getLogger(__name__)

NO_KERNELS = (
    "the C++ kernels were not built, and PyTorch computes, which takes several times as long: install a C++ compiler, "
    "or `pip install ziglang`, which brings one, and then Headrace again"
)


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


class LoadFailed(Exception):
    """The model cannot be served as it is configured; the message says why."""


def load(settings: Settings, *, on_card: Callable[[Card], None], clock: Callable[[], float]) -> LoadedModel:
    """Load the model that the settings name. `on_card` is called as soon as its shape is known. Raises LoadFailed.

    `clock` says Unix seconds as the rows' `ready_at` does.
    """
    try:
        return _load(settings, on_card, clock)
    except (ModelError, OSError, ValueError) as error:  # what the files of a model may be to blame for
        raise LoadFailed(str(error)) from error


def _load(settings: Settings, on_card: Callable[[Card], None], clock: Callable[[], float]) -> LoadedModel:
    cache_dir = settings.data_dir / "models"
    path = _path(settings, cache_dir)
    # OpenMP reads this when torch is imported: by default a thread that waits for the next operation spins for
    # milliseconds, and where other processes want the cores too a step takes ten times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # torch takes seconds to import. It must not hold up Celery's thread, nor the news that the path is wrong.
    import torch

    from kernels import attention_block_size
    from workers.engine.build import build_engine
    from workers.models.card import read_card

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = _dtype(settings, device)
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    model_card = read_card(path, cache_dir=cache_dir)
    block_size = attention_block_size(device, dtype=dtype, head_dim=model_card.config.head_dim)
    kv_dtype = _kv_dtype(settings, dtype, device)
    bytes_per_block = capacity.block_bytes(model_card.config, block_size, kv_dtype)
    resolve_capacity = partial(
        capacity.resolve,
        settings,
        longest=model_card.config.max_position_embeddings,
        block_size=block_size,
        block_bytes=bytes_per_block,
    )
    has = None
    if device.type == "cpu":  # known before the weights are read, so that jobs can be sent meanwhile
        has = resolve_capacity(num_blocks=settings.kv_cache_tokens // block_size)
        on_card(_card(settings, model_card, has, dtype))
    log.info("loading the model", extra={"model": settings.served_name, "path": str(path), "dtype": str(dtype)})
    tokenizer = Tokenizer.load(model_card.tokenizer_path.resolve())
    packing = _packing(settings, model_card, dtype, device)
    decoder = _decoder(settings, path, dtype, device, packing)
    model = decoder if packing is None or has is None else _recorded(decoder, has)
    if has is None:
        memory = torch.cuda.mem_get_info
        free, total = capacity.warm_up(
            model, settings, block_size=block_size, dtype=kv_dtype, device=device, free_memory=memory
        )
        share = settings.gpu_memory_share
        num_blocks = capacity.blocks_that_fit(free, total, share=share, bytes_per_block=bytes_per_block)
        has = resolve_capacity(num_blocks=num_blocks)
        on_card(_card(settings, model_card, has, dtype))
    engine = build_engine(
        _engine_config(settings, has, model_card, is_overlapping=settings.overlap or device.type != "cpu"),
        model,
        device=device,
        dtype=kv_dtype,
        weights=_weights(path, dtype, settings.quantization, packing),
        has_graphs=not any(model_card.config.experts),
        clock=clock,
    )
    return LoadedModel(
        engine,
        tokenizer,
        is_shared=settings.prefix_cache_scope == "all",
        shares_processors=device.type == "cpu",
        pooling=settings.embedding_pooling,
    )


def _packing(settings: Settings, model_card: "ModelCard", dtype: "torch.dtype", device: "torch.device") -> str | None:
    """How the weights are packed for the CPU kernels; None where these do not compute. Raises LoadFailed."""
    from kernels.cpu.library import library
    from workers.models.packings import AS_STORED
    from workers.models.recorded import can_be_recorded

    if device.type == "cpu" and library() is None:
        log.warning(NO_KERNELS)
    if can_be_recorded(model_card.config, dtype, device):
        return settings.quantization or AS_STORED
    if settings.quantization and (device.type == "cpu" or any(model_card.config.experts)):
        raise LoadFailed(
            "HEADRACE_QUANTIZATION needs, on a CPU, the CPU kernels, dtype bfloat16 and heads of a multiple of 32, "
            "and on a GPU a model without experts"
        )
    return None


def _decoder(
    settings: Settings, path: Path, dtype: "torch.dtype", device: "torch.device", packing: str | None
) -> "Decoder":
    from workers.models.loader import load_model
    from workers.models.packings import AS_STORED

    quantization = None if device.type == "cpu" else settings.quantization or AS_STORED
    cache_dir = settings.data_dir / "models"
    return load_model(path, cache_dir=cache_dir, dtype=dtype, device=device, packing=packing, quantization=quantization)


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


def _path(settings: Settings, cache_dir: Path) -> Path:
    if settings.model is None:
        return demo_model_path(cache_dir)
    return resolve(settings.model)


def _dtype(settings: Settings, device: "torch.device") -> "torch.dtype":
    import torch

    from kernels import default_dtype

    if settings.dtype == "auto":
        return default_dtype(device)
    dtype = getattr(torch, settings.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _kv_dtype(settings: Settings, dtype: "torch.dtype", device: "torch.device") -> "torch.dtype":
    import torch

    if settings.kv_cache_dtype == "auto":
        return dtype
    if device.type != "cpu":
        raise LoadFailed("HEADRACE_KV_CACHE_DTYPE=int8 needs a CPU; on a GPU the KV cache has the dtype of the weights")
    return torch.int8


def _card(settings: Settings, model_card: "ModelCard", has: Capacity, dtype: "torch.dtype") -> Card:
    return Card(
        model=settings.served_name,
        tokenizer_path=model_card.tokenizer_path.resolve(),
        chat_template=_chat_template(settings, model_card),
        max_model_len=has.max_model_len,
        max_num_seqs=has.max_num_seqs,
        block_size=has.block_size,
        num_blocks=has.num_blocks,
        vocab_size=model_card.config.vocab_size,
        bos_token=model_card.bos_token,
        eos_token=model_card.eos_token,
        dtype=str(dtype).removeprefix("torch."),
    )


def _chat_template(settings: Settings, model_card: "ModelCard") -> str | None:
    """The setting (a template, or a file that holds one) before the model's own; the demo model has none."""
    if settings.chat_template is None:
        return TRANSCRIPT if settings.model is None else model_card.chat_template
    is_template = "{" in settings.chat_template or "\n" in settings.chat_template
    return settings.chat_template if is_template else Path(settings.chat_template).read_text()


def _engine_config(settings: Settings, has: Capacity, model_card: "ModelCard", *, is_overlapping: bool) -> EngineConfig:
    disk_bytes = int(settings.disk_cache_gb * capacity.GIB)
    return EngineConfig(
        max_num_seqs=has.max_num_seqs,
        token_budget=has.token_budget,
        max_model_len=has.max_model_len,
        block_size=has.block_size,
        num_blocks=has.num_blocks,
        vocab_size=model_card.config.vocab_size,
        eos_token_ids=frozenset(model_card.eos_token_ids),
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
        is_overlapping=is_overlapping,
    )


def _weights(path: Path, *how: object) -> str:
    """What changes when the model's files do, or how they are computed: another packing has other K and V."""
    files = fingerprint(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return repr((files, *map(str, how)))
