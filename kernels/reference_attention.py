"""Paged attention in plain PyTorch, in fp32 whatever the cache holds.

A query's result depends on its own context alone, to the last bit. Keys are cut into tiles at absolute positions;
scores sum over head_dim, values over one tile at a time, so the order of every sum is the same in a chunk of a prompt
and in a decode step, and a tile that is masked whole adds exact zeros.
"""

from dataclasses import dataclass

import torch

from kernels import int8_kv
from kernels.attention import AttentionBatch, head_dim_of
from kernels.reference import fill_up

KV_TILE = 128  # tokens; a multiple of the block size
MAX_QUERIES = 128  # of a chunk attended to at once; bounds the scores in memory
MAX_SCORES = 4096  # queries times keys of pieces attended to at once; what they gather stays in the CPU's cache


@dataclass(frozen=True)
class Piece:
    """Consecutive queries of one sequence: `num_queries` rows of q from `first_row`, seeing keys [first_key, end)."""

    seq: int
    first_row: int
    num_queries: int
    first_key: int  # the first key of a tile
    end: int


@dataclass(frozen=True)
class Group:
    """Pieces of one shape, attended to in one go over `span` consecutive keys of each, whole tiles."""

    rows: torch.Tensor  # int64 [num_pieces * num_queries]: their rows of q, piece by piece
    block_ids: torch.Tensor  # int64 [num_pieces, span / block_size]
    is_masked: torch.Tensor  # bool [num_pieces, num_queries, span]: this query does not see that key
    is_unwritten: torch.Tensor  # bool [num_pieces, span]: past the context, where a slot may hold anything, even NaN


def paged_attention(
    q: torch.Tensor, kv_layer: torch.Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None = None
) -> torch.Tensor:
    """Causal attention of q [num_tokens, num_heads, head_dim] over the cache; returns q's shape and dtype.

    `kv_layer` [num_blocks, 2, block_size, num_kv_heads, head_dim] already holds this step's K and V, as they are or in
    int8. With `sliding_window` w, a query sees the last w positions, its own among them.
    """
    groups = batch.plans.get(sliding_window)
    if groups is None:
        groups = batch.plans[sliding_window] = _make_groups(batch, kv_layer.shape[2], sliding_window)
    out = torch.empty_like(q)
    for group in groups:
        out[group.rows] = _attend(q[group.rows].float() * scale, kv_layer, group).to(q.dtype)
    return out


def _attend(q: torch.Tensor, kv_layer: torch.Tensor, group: Group) -> torch.Tensor:
    """Attention of one group's queries, q fp32 [num_pieces * num_queries, num_heads, head_dim], already scaled."""
    num_pieces, num_queries, span = group.is_masked.shape
    num_heads, num_kv_heads, head_dim = q.shape[1], kv_layer.shape[3], head_dim_of(kv_layer)
    num_shared = num_heads // num_kv_heads  # query heads per KV head
    q = q.view(num_pieces, num_queries, num_kv_heads, num_shared, head_dim)
    q = q.permute(0, 2, 1, 3, 4)  # [num_pieces, num_kv_heads, num_queries, num_shared, head_dim]
    k, v = _gather(kv_layer, group)

    rows = q.flatten(2, 3).flatten(0, 1)  # [num_pieces * num_kv_heads, num_queries * num_shared, head_dim]
    num_rows = rows.shape[1]
    rows = fill_up(rows)  # of other numbers, products are added in another order here too
    scores = torch.bmm(k, rows.transpose(1, 2)).transpose(1, 2).contiguous()  # K left, as the weight in `linear`
    by_query = scores[:, :num_rows].view(*q.shape[:4], span)
    by_query.masked_fill_(group.is_masked[:, None, :, None], -torch.inf)
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()

    out, total = torch.zeros_like(rows), rows.new_zeros(*rows.shape[:2], 1)
    for start in range(0, span, KV_TILE):
        tile = weights[:, :, start : start + KV_TILE]
        out += torch.bmm(tile, v[:, start : start + KV_TILE])
        total += tile.sum(-1, keepdim=True)
    out = (out / total)[:, :num_rows].reshape(q.shape).permute(0, 2, 1, 3, 4)
    return out.reshape(num_pieces * num_queries, num_heads, head_dim)


def _gather(kv_layer: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """A group's K and V, copied out of the cache: fp32 [num_pieces * num_kv_heads, span, head_dim] each."""
    widen = int8_kv.dequantize if kv_layer.dtype == torch.int8 else torch.Tensor.float
    k = widen(kv_layer[:, 0][group.block_ids].flatten(1, 2))  # [num_pieces, span, num_kv_heads, head_dim]
    v = widen(kv_layer[:, 1][group.block_ids].flatten(1, 2))
    v[group.is_unwritten] = 0.0  # their weight is zero, but zero times NaN would be NaN
    return k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1)


def _make_groups(batch: AttentionBatch, block_size: int, sliding_window: int | None) -> list[Group]:
    """Every query of the batch once. Pieces go together by their number of queries and, rounded up, of tiles."""
    by_shape: dict[tuple[int, int], list[Piece]] = {}
    for piece in _cut(batch, sliding_window):
        num_tiles = _round_up(-(-(piece.end - piece.first_key) // KV_TILE))
        by_shape.setdefault((piece.num_queries, num_tiles * KV_TILE), []).append(piece)
    groups = []
    for (num_queries, span), pieces in by_shape.items():
        size = max(1, MAX_SCORES // (num_queries * span))
        for start in range(0, len(pieces), size):
            groups.append(_make_group(batch, pieces[start : start + size], span, block_size, sliding_window))
    return groups


def _round_up(num_tiles: int) -> int:
    """To at most a quarter more, so that contexts of many lengths make few groups: 1 to 8, then 10, 12, 14, 16, 20."""
    step = 1 << max(0, (num_tiles - 1).bit_length() - 3)
    return -(-num_tiles // step) * step


def _cut(batch: AttentionBatch, sliding_window: int | None) -> list[Piece]:
    starts, context_lens = batch.cu_seqlens_q.tolist(), batch.context_lens.tolist()
    pieces = []
    for seq, context_len in enumerate(context_lens):
        to_position = context_len - starts[seq + 1]  # of a row of this sequence
        for first_row in range(starts[seq], starts[seq + 1], MAX_QUERIES):
            num_queries = min(MAX_QUERIES, starts[seq + 1] - first_row)
            position = first_row + to_position
            first_seen = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
            first_key = first_seen // KV_TILE * KV_TILE
            pieces.append(Piece(seq, first_row, num_queries, first_key, position + num_queries))
    return pieces


def _make_group(
    batch: AttentionBatch, pieces: list[Piece], span: int, block_size: int, sliding_window: int | None
) -> Group:
    device = batch.block_tables.device
    facts = torch.tensor([(piece.seq, piece.first_row, piece.first_key, piece.end) for piece in pieces], device=device)
    seqs, first_rows, first_keys, ends = facts[:, :, None].unbind(1)  # int64 [num_pieces, 1] each
    queries = torch.arange(pieces[0].num_queries, device=device)
    keys = first_keys + torch.arange(span, device=device)  # [num_pieces, span]
    distance = (ends - len(queries) + queries)[:, :, None] - keys[:, None]  # from query back to key
    is_masked = distance < 0
    if sliding_window is not None:
        is_masked |= distance >= sliding_window
    columns = (keys[:, ::block_size] // block_size).clamp_(max=batch.block_tables.shape[1] - 1)
    return Group(
        rows=(first_rows + queries).flatten(),
        block_ids=batch.block_tables[seqs, columns].long(),
        is_masked=is_masked,
        is_unwritten=keys >= ends,
    )
