"""Launches ``engine.kernels.paged_prefill``, cut as suits head shape and card."""

from dataclasses import dataclass
from functools import cache as cached

import torch
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.attention.kernel_numbers import LEAST_DOT, LOG2_E, NO_WINDOW, power_of_two
from engine.device import shared_memory
from engine.kv_cache import KVCache

ROOMY = 160 * 1024  # bytes of shared memory of a program, from which on tiles are large


@dataclass(frozen=True, slots=True)
class PrefillTiling:
    """``rows`` new tokens and ``tile`` keys at once; ``stages`` tiles are on their way or worked on."""

    rows: int
    tile: int
    warps: int
    stages: int

    def shared_bytes(self, dim: int, dtype: torch.dtype) -> int:
        """What queries, keys and values of a program take; on Hopper keys and values take a stage more."""
        return (self.rows + 2 * self.tile * (self.stages - 1)) * _padded(dim) * dtype.itemsize


@cached
def prefill_tiling(dim: int, dtype: torch.dtype, most_shared: int) -> PrefillTiling:
    """The tiling for a head dim on a card whose programs have so many bytes of shared memory."""
    if dtype.itemsize > 2:
        return PrefillTiling(rows=32, tile=32 if dim <= 128 else 16, warps=4, stages=2)
    if dim > 128:
        return PrefillTiling(rows=64, tile=32, warps=4, stages=2)
    if most_shared >= ROOMY:
        return PrefillTiling(rows=128, tile=64, warps=8, stages=3)
    return PrefillTiling(rows=64, tile=64, warps=4, stages=2)


def prefill(
    layer: int, query: Tensor, batch: PagedBatch, cache: KVCache, *, scale: float, window: int | None
) -> Tensor:
    """Attention of packed new tokens, which are in the cache already: [T, heads, dim], like ``query``."""
    from engine.kernels.paged_prefill import paged_prefill

    _, heads, dim = query.shape
    query = query if query.stride(-1) == 1 else query.contiguous()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tiling = prefill_tiling(dim, query.dtype, _most_shared(query.device))
    keys, values = cache.layer(layer)
    grid = (-(-max(batch.query_lens) // tiling.rows), len(batch.query_lens), heads)
    paged_prefill[grid](
        out,
        query,
        keys,
        values,
        batch.block_tables,
        batch.context_lens,
        batch.cu_seqlens_q,
        scale * LOG2_E,
        NO_WINDOW if window is None else window,
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        HEADS=heads,
        KV_HEADS=cache.shape.num_kv_heads,
        DIM=dim,
        DIM_PADDED=_padded(dim),
        BLOCK=cache.block_size,
        ROWS=tiling.rows,
        TILE=tiling.tile,
        STAGES=tiling.stages,
        WINDOWED=window is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiling.warps,
    )
    return out


@cached
def _most_shared(device: torch.device) -> int:
    found = shared_memory(device) if device.type == "cuda" else None
    return ROOMY if found is None else found


def _padded(dim: int) -> int:
    return max(LEAST_DOT, power_of_two(dim))
