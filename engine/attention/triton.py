"""Our own back end: paged kernels in Triton, for any block size; one for decode, one for prefill."""

from dataclasses import dataclass
from functools import cache as cached

import torch
from torch import Tensor

from engine.attention.append import append
from engine.attention.base import PagedBatch
from engine.attention.kernel_numbers import LEAST_DOT, LOG2_E, NO_WINDOW, power_of_two
from engine.attention.triton_prefill import prefill
from engine.errors import DeviceError
from engine.kv_cache import KVCache

MOST_SPLITS = 64  # parts of a context; a power of two
# One long context among many short ones must not be left to a single program.
FEWEST_WORKERS = 8
INTERPRETER_SMS = 4
# Keys of one step of the loop; the values take as much again. Measured on an H200: 128 rows of 256 bytes beat
# 64 of them by a tenth; longer rows leave the registers no room for as much.
TILE_BYTES, WIDE_TILE_BYTES = 32 * 1024, 16 * 1024
WIDE_ROW = 512
PART_REGISTERS = 64  # of a thread, for parts that are read at the same time


@dataclass(frozen=True, slots=True)
class DecodeTiling:
    """How the decode kernel cuts its work.

    ``tile`` and ``chunk`` shape the order of additions, so they follow from model and dtype alone: no batch,
    table or card changes what a sequence computes.

    Attributes:
        tile: tokens a loop step.
        chunk: tokens a part, a multiple of ``tile``; more where ``MOST_SPLITS`` parts would not do.
        warps: warps a program.
        stages: tiles that are on their way through shared memory or worked on.
        programs_per_sm: programs launched for each multiprocessor; those of short contexts leave at once.
    """

    tile: int
    chunk: int = 256
    warps: int = 4
    stages: int = 2
    programs_per_sm: int = 4


class TritonAttention:
    """Decodes with a split-KV kernel that also appends, one launch a layer, capturable in a CUDA graph; for
    prefill an append and a kernel over all sequences.

    Args:
        tiling: fixes the kernel's shape, for measurements; None fits it to head dim, dtype and card.

    Raises:
        ImportError: triton is not installed.
    """

    name = "triton"
    capturable = True

    def __init__(self, tiling: DecodeTiling | None = None) -> None:
        from engine.kernels.paged_decode import paged_decode

        self._kernel = paged_decode
        self._tiling = tiling
        self._scratch: dict[torch.device, _Scratch] = {}
        self._checked: PagedBatch | None = None

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: PagedBatch,
        cache: KVCache,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """See ``AttentionBackend.attend``.

        Raises:
            DeviceError: a context is longer than its table, where the lengths are known on the host.
        """
        if self._checked is not batch:
            _check(batch, cache.block_size)
            self._checked = batch
        if not batch.decode:
            append(cache, layer, key, value, batch.slot_mapping)
            return prefill(layer, query, batch, cache, scale=scale, window=window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self.decode(out, layer, query, key, value, batch, cache, scale=scale, window=window)
        return out

    def decode(
        self,
        out: Tensor,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: PagedBatch,
        cache: KVCache,
        *,
        scale: float,
        window: int | None,
    ) -> None:
        """Append and attend for one new token a row, into ``out``: contiguous, shaped like ``query``.

        Only shapes and strides are read on the host. A padded row (slot -1) writes nothing to the cache and
        gets zeros. What a row computes depends on that row alone.
        """
        rows, heads, dim = query.shape
        kv_heads = cache.shape.num_kv_heads
        group = heads // kv_heads
        query, key, value = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value))
        tiling = self._tiling or fitted(dim, cache.shape.dtype)
        capacity = min(MOST_SPLITS, _cut(batch.block_tables.shape[1] * cache.block_size, tiling.chunk))
        wanted = tiling.programs_per_sm * _multiprocessors(query.device) // (rows * kv_heads)
        workers = min(capacity, max(FEWEST_WORKERS, wanted))
        scratch = self._scratch_for(query.device, rows * kv_heads, capacity * group, dim)
        self._kernel[(rows * kv_heads, workers)](
            out,
            query,
            key,
            value,
            *cache.layer(layer),
            batch.block_tables,
            batch.context_lens,
            batch.slot_mapping,
            scratch.parts,
            scratch.peaks,
            scratch.sums,
            scratch.arrived,
            scale * LOG2_E,
            NO_WINDOW if window is None else window,
            batch.block_tables.stride(0),
            capacity,
            query.stride(0),
            query.stride(1),
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            KV_HEADS=kv_heads,
            GROUP=group,
            GROUP_PADDED=power_of_two(group),
            ROWS=max(LEAST_DOT, power_of_two(group)),
            DIM=dim,
            DIM_PADDED=max(LEAST_DOT, power_of_two(dim)),
            BLOCK=cache.block_size,
            TILE=tiling.tile,
            CHUNK=tiling.chunk,
            MOST_SPLITS=MOST_SPLITS,
            AT_ONCE=_parts_at_once(group, dim, tiling.warps),
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )

    def _scratch_for(self, device: torch.device, pairs: int, splits: int, dim: int) -> "_Scratch":
        scratch = self._scratch.get(device)
        if scratch is not None and scratch.holds(pairs, splits, dim):
            return scratch
        grown = _Scratch(pairs, splits, dim, device, scratch)
        # Memory taken inside a capture belongs to that graph, and its counters are zero only after a replay.
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            self._scratch[device] = grown
        return grown


class _Scratch:
    """Unjoined parts of the sequences of a launch, and how many of them are done; reused by every launch.

    Args:
        pairs: batch rows times kv heads.
        splits: parts a pair, times query heads of a kv head.
        outgrown: the smaller one it replaces, kept alive for the graphs that were captured with its address.
    """

    def __init__(
        self, pairs: int, splits: int, dim: int, device: torch.device, outgrown: "_Scratch | None"
    ) -> None:
        self.outgrown = outgrown
        self.parts = torch.empty(pairs * splits * dim, dtype=torch.float32, device=device)
        self.peaks = torch.empty(pairs * splits, dtype=torch.float32, device=device)
        self.sums = torch.empty(pairs * splits, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(pairs, dtype=torch.int32, device=device)

    def holds(self, pairs: int, splits: int, dim: int) -> bool:
        """Whether a launch of that size fits."""
        return (
            pairs <= self.arrived.numel()
            and pairs * splits <= self.peaks.numel()
            and pairs * splits * dim <= self.parts.numel()
        )


def _check(batch: PagedBatch, block_size: int) -> None:
    """A length beyond the table would read another row's blocks, or past the tensor, without a word."""
    room = batch.block_tables.shape[1] * block_size
    if batch.contexts is not None and max(batch.contexts, default=0) > room:
        raise DeviceError(
            f"A context of {max(batch.contexts)} tokens is longer than its block table, which holds {room}."
        )


@cached
def fitted(dim: int, dtype: torch.dtype) -> DecodeTiling:
    """The tiling for a head dim: tiles of like size in bytes."""
    row_bytes = power_of_two(dim) * dtype.itemsize
    tile_bytes = WIDE_TILE_BYTES if row_bytes >= WIDE_ROW or dtype.itemsize > 2 else TILE_BYTES
    return DecodeTiling(tile=min(128, max(16, tile_bytes // row_bytes)))


def _parts_at_once(group: int, dim: int, warps: int) -> int:
    elements = power_of_two(group) * power_of_two(dim)
    return min(16, max(1, PART_REGISTERS * 32 * warps // elements))


@cached
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETER_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _cut(length: int, size: int) -> int:
    """Pieces of ``size`` that cover ``length``, at least one."""
    return max(1, -(-length // size))
