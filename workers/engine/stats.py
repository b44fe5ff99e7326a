"""What an engine tells of itself: for the worker's row, Flower's pool page and the API's metrics."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.engine.engine import Engine


@dataclass(frozen=True)
class EngineStats:
    """Gauges are of now; the others only grow, from the worker's start."""

    # Gauges
    running: int
    waiting: int
    free_seats: int
    free_blocks: int
    cached_blocks: int  # that can be found by their content, in use or free

    steps: int
    preemptions_recompute: int
    preemptions_swap: int
    recomputed_tokens: int  # computed before, and given up by the first kind
    swapped_out_bytes: int  # to host memory, by preemption and eviction
    swapped_in_bytes: int
    move_seconds: float  # that steps waited for these
    lookup_tokens: int  # of admitted sequences: what the prefix cache was asked
    hit_tokens: int  # of those, found instead of computed
    host_hit_tokens: int
    disk_hit_tokens: int
    evictions: int  # blocks whose content made room for another


def stats_of(engine: "Engine") -> EngineStats:
    """As it stands."""
    blocks, preemption = engine.scheduler.blocks, engine.scheduler.preemption
    cache, moves = blocks.stats, engine.moves
    return EngineStats(
        running=engine.num_running,
        waiting=engine.num_waiting,
        free_seats=engine.num_free_seats,
        free_blocks=engine.num_free_blocks,
        cached_blocks=blocks.num_cached_blocks,
        steps=engine.num_steps,
        preemptions_recompute=preemption.num_recomputes,
        preemptions_swap=preemption.num_swaps,
        recomputed_tokens=preemption.num_recomputed_tokens,
        swapped_out_bytes=moves.offloaded_bytes,
        swapped_in_bytes=moves.loaded_bytes,
        move_seconds=moves.seconds,
        lookup_tokens=cache.lookups_tokens,
        hit_tokens=cache.hit_tokens,
        host_hit_tokens=cache.host_hit_tokens,
        disk_hit_tokens=cache.disk_hit_tokens,
        evictions=cache.evictions,
    )
