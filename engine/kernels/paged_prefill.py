"""Paged attention of the new tokens of several sequences, behind whatever of them is cached.

Flash attention (Dao 2023) over block tables: a program has a tile of one sequence's new tokens and one query
head, and goes over the keys that they see, new ones included, which are in the cache already. Programs whose
tokens see most keys start first.
"""

import triton
import triton.language as tl


@triton.jit
def attend_rows(  # type: ignore[no-untyped-def]
    queries, keys, values, seen, scale_log2, peak, total, mixed, HIDES: tl.constexpr, PRECISION: tl.constexpr
):
    """The running softmax over one more tile of keys; ``seen`` [rows, keys] counts where it ``HIDES`` any."""
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale_log2
    if HIDES:
        scores = tl.where(seen, scores, float("-inf"))
    risen = tl.maximum(peak, tl.max(scores, axis=1))
    if HIDES:
        # A row that has seen nothing yet keeps a peak of minus infinity; its weights must be zero, not NaN.
        level = tl.where(risen == float("-inf"), 0.0, risen)
    else:
        level = risen
    fade = tl.exp2(peak - level)
    weights = tl.exp2(scores - level[:, None])
    total = total * fade + tl.sum(weights, axis=1)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision=PRECISION)
    return risen, total, mixed


@triton.jit(do_not_specialize=["window", "table_row"])
def paged_prefill(  # type: ignore[no-untyped-def]
    out,
    query,
    keys,
    values,
    tables,
    lengths,
    starts,
    scale_log2,
    window,
    table_row,
    query_row,
    query_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (tiles of the longest sequence's new tokens, sequences, query heads).

    ``out`` is contiguous [T, HEADS, DIM]; ``lengths`` [sequences] count cached and new tokens, ``starts``
    [sequences + 1] are the places of the new ones among T.
    """
    sequence = tl.program_id(1)
    head = tl.program_id(2)
    begin = tl.load(starts + sequence).to(tl.int64)
    new = (tl.load(starts + sequence + 1) - begin).to(tl.int32)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    if first >= new:
        return
    length = tl.load(lengths + sequence)
    rows = first + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PADDED)
    offsets = tl.arange(0, TILE)
    own = (rows < new)[:, None] & (dims < DIM)[None, :]
    at = query + (begin + rows)[:, None] * query_row + head * query_head + dims[None, :]
    queries = tl.load(at, mask=own, other=0.0)
    places = length - new + rows  # in the sequence
    table = tables + sequence.to(tl.int64) * table_row
    part = (head // (HEADS // KV_HEADS)) * DIM + dims
    stop = tl.minimum(length - new + first + ROWS, length)
    if WINDOWED:
        start = tl.maximum(length - new + first - window + 1, 0) // TILE * TILE
        whole = start
    else:
        start = 0
        whole = (length - new + first + 1) // TILE * TILE  # all rows see all keys before

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    # Only blocks that an earlier turn has read let several tiles be in flight.
    blocks = tl.load(table + (start + offsets) // BLOCK, mask=start + offsets < stop, other=0)
    for tile in tl.range(start, whole, TILE, num_stages=STAGES):
        positions = tile + offsets
        slots = blocks.to(tl.int64) * BLOCK + positions % BLOCK
        place = slots[:, None] * (KV_HEADS * DIM) + part[None, :]
        blocks = tl.load(table + (positions + TILE) // BLOCK, mask=positions + TILE < stop, other=0)
        if DIM == DIM_PADDED:
            tile_keys = tl.load(keys + place)
            tile_values = tl.load(values + place)
        else:
            tile_keys = tl.load(keys + place, mask=(dims < DIM)[None, :], other=0.0)
            tile_values = tl.load(values + place, mask=(dims < DIM)[None, :], other=0.0)
        peak, total, mixed = attend_rows(
            queries, tile_keys, tile_values, own, scale_log2, peak, total, mixed, False, PRECISION
        )
    for tile in tl.range(whole, stop, TILE, num_stages=STAGES):
        positions = tile + offsets
        inside = positions < stop
        slots = blocks.to(tl.int64) * BLOCK + positions % BLOCK
        place = slots[:, None] * (KV_HEADS * DIM) + part[None, :]
        blocks = tl.load(table + (positions + TILE) // BLOCK, mask=positions + TILE < stop, other=0)
        there = inside[:, None] & (dims < DIM)[None, :]
        tile_keys = tl.load(keys + place, mask=there, other=0.0)
        tile_values = tl.load(values + place, mask=there, other=0.0)
        seen = positions[None, :] <= places[:, None]
        if WINDOWED:
            seen &= positions[None, :] > places[:, None] - window
        peak, total, mixed = attend_rows(
            queries, tile_keys, tile_values, seen, scale_log2, peak, total, mixed, True, PRECISION
        )
    total = tl.where(rows < new, total, 1.0)  # rows beyond may have seen nothing
    target = out + (begin + rows)[:, None] * (HEADS * DIM) + head * DIM + dims[None, :]
    tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=own)
