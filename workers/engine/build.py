"""An engine with all its parts: the tiers of its cache, the blocks, the runner."""

import hashlib
import time
from collections.abc import Callable

import torch

from workers.engine.accelerator import Accelerator, CudaAccelerator
from workers.engine.block_manager import BlockManager
from workers.engine.config import EngineConfig
from workers.engine.disk_tier import DiskTier
from workers.engine.engine import Engine
from workers.engine.graph_runner import GraphRunner
from workers.engine.host_tier import HostTier
from workers.engine.runner import Model, ModelRunner


def build_engine(
    config: EngineConfig,
    model: Model,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    weights: str = "",
    accelerator: Accelerator | None = None,
    has_graphs: bool = True,
    clock: Callable[[], float] = time.time,
) -> Engine:
    """An engine that runs `model` over a KV cache of `dtype`. `weights` names them and how they are computed: what was
    computed with others is never found again.

    `accelerator` is what there is beside the host; None: a GPU that `device` names, or nothing. On one, decoding is
    captured in graphs unless `has_graphs` says that the model's launches depend on what it computes.
    """
    layout = _layout(config, model, dtype, weights)
    disk = _disk_tier(config, layout)
    host = HostTier(config.host_blocks, policy=config.host_policy, disk=disk)
    blocks = BlockManager(config.num_blocks, config.block_size, is_caching=config.is_caching, host=host, layout=layout)
    if accelerator is None and torch.device(device).type == "cuda":
        accelerator = CudaAccelerator(torch.device(device))
    runner: ModelRunner | GraphRunner
    if accelerator is None:
        runner = ModelRunner(model, config, device=device, dtype=dtype, disk=disk)
    else:
        runner = GraphRunner(model, config, accelerator, dtype, disk=disk, has_graphs=has_graphs)
    engine = Engine(config, runner, blocks=blocks, moves=runner.mover.stats, clock=clock)
    engine.step_time.seconds_per_block = runner.mover.seconds_per_block
    return engine


def _disk_tier(config: EngineConfig, layout: bytes) -> DiskTier | None:
    if config.disk_path is None or config.disk_bytes <= 0:
        return None
    return DiskTier(config.disk_path, max_bytes=config.disk_bytes, layout=layout, policy=config.host_policy)


def _layout(config: EngineConfig, model: Model, dtype: torch.dtype, weights: str) -> bytes:
    """What must be equal for a block's content to mean the same."""
    shape = (model.config.num_layers, model.config.num_kv_heads, model.config.head_dim, config.block_size)
    return hashlib.sha256(repr(("kv-layout-1", weights, str(dtype), shape)).encode()).digest()
