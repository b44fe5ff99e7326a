"""How the model that the settings name will be computed: all that is known before its weights are read."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from db.settings import Settings
from workers import capacity
from workers.capacity import Capacity
from workers.models.demo import demo_model_path
from workers.models.location import resolve

if TYPE_CHECKING:
    import torch

    from workers.models.card import ModelCard
    from workers.models.config import ModelConfig

log = logging.getLogger(__name__)

NO_KERNELS = (
    "the C++ kernels were not built, and PyTorch computes, which takes several times as long: install a C++ compiler, "
    "or `pip install ziglang`, which brings one, and then Headrace again"
)


class LoadFailed(Exception):
    """The model cannot be served as it is configured; the message says why."""


@dataclass(frozen=True)
class ModelPlan:
    """Where the model is, what it is, and where and in which types it is computed."""

    settings: Settings
    path: Path
    cache_dir: Path
    model_card: "ModelCard"
    device: "torch.device"
    dtype: "torch.dtype"  # of what is computed
    kv_dtype: "torch.dtype"
    block_size: int

    @property
    def is_on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def block_bytes(self) -> int:
        """Of one block of the KV cache."""
        return capacity.block_bytes(self.model_card.config, self.block_size, self.kv_dtype)

    def capacity_of(self, num_blocks: int) -> Capacity:
        """What a worker with so many blocks holds."""
        return capacity.resolve(
            self.settings,
            longest=self.model_card.config.max_position_embeddings,
            block_size=self.block_size,
            num_blocks=num_blocks,
            block_bytes=self.block_bytes,
        )

    def packing(self) -> str | None:
        """How the weights are packed for the CPU kernels; None where these do not compute. Raises LoadFailed."""
        from kernels.cpu.library import library
        from workers.models.packings import AS_STORED
        from workers.models.recorded import can_be_recorded

        if self.is_on_cpu and library() is None:
            log.warning(NO_KERNELS)
        if can_be_recorded(self.model_card.config, self.dtype, self.device):
            return self.settings.quantization or AS_STORED
        if self.settings.quantization and (self.is_on_cpu or any(self.model_card.config.experts)):
            raise LoadFailed(
                "HEADRACE_QUANTIZATION needs, on a CPU, the CPU kernels, dtype bfloat16 and heads of a multiple of 32, "
                "and on a GPU a model without experts"
            )
        return None


def make_plan(settings: Settings) -> ModelPlan:
    """The plan for a GPU, where there is one, or the CPU. Raises LoadFailed, and what `read_card` does."""
    cache_dir = settings.data_dir / "models"
    path = demo_model_path(cache_dir) if settings.model is None else resolve(settings.model)
    # OpenMP reads this when torch is imported: by default a thread that waits for the next operation spins for
    # milliseconds, and where other processes want the cores too a step takes ten times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # torch takes seconds to import. It must not hold up Celery's thread, nor the news that the path is wrong.
    import torch

    from kernels import attention_block_size
    from workers.models.card import read_card

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    model_card = read_card(path, cache_dir=cache_dir)
    dtype = _dtype(settings, model_card.config, device)
    block_size = attention_block_size(device, dtype=dtype, head_dim=model_card.config.head_dim)
    kv_dtype = kv_cache_dtype(settings, dtype, device)
    return ModelPlan(settings, path, cache_dir, model_card, device, dtype, kv_dtype, block_size)


def kv_cache_dtype(settings: Settings, dtype: "torch.dtype", device: "torch.device") -> "torch.dtype":
    """As the settings say, for a model that computes in `dtype`. Raises LoadFailed."""
    import torch

    if settings.kv_cache_dtype == "auto":
        return dtype
    if device.type != "cpu":
        raise LoadFailed("HEADRACE_KV_CACHE_DTYPE=int8 needs a CPU; on a GPU the KV cache has the dtype of the weights")
    return torch.int8


def _dtype(settings: Settings, config: "ModelConfig", device: "torch.device") -> "torch.dtype":
    import torch

    from kernels import default_dtype
    from workers.models.recorded import can_be_recorded

    if settings.dtype == "auto":  # our kernels widen bfloat16 as they read it, whatever the processor has
        return torch.bfloat16 if can_be_recorded(config, torch.bfloat16, device) else default_dtype(device)
    dtype = getattr(torch, settings.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
