"""Paged attention of one new token a sequence: split over the context, joined in the same launch.

The split over keys and values is flash decoding (Dao, Haziza, Massa, Sizov 2023), the running softmax is
flash attention's. What differs here:

* Where a context is cut depends on its own length alone, never on the batch: a sequence's output has the
  same bits whoever shares the launch.
* The program that owns the end of a context writes the new token's key and value to the cache, and uses them
  from its registers; no launch goes before this one.
* The last program of a sequence to finish joins the parts, always in their order, so that no launch follows.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["window", "table_row", "capacity"])
def paged_decode(  # type: ignore[no-untyped-def]
    out,
    query,
    key,
    value,
    keys,
    values,
    tables,
    lengths,
    slots,
    parts,
    peaks,
    sums,
    arrived,
    scale_log2,
    window,
    table_row,
    capacity,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """A program works for one sequence and kv head; ``ROWS`` are its ``GROUP`` query heads, padded for dot.

    Grid: (batch * kv heads, workers). ``capacity`` is the number of splits that the part buffers hold a pair;
    ``scale_log2`` is the scale times log2(e), scores are in powers of two throughout.
    """
    pair = tl.program_id(0)
    worker = tl.program_id(1)
    workers = tl.num_programs(1)
    row = (pair // KV_HEADS).to(tl.int64)
    head = pair % KV_HEADS
    length = tl.load(lengths + row)
    cached = length - 1
    first = tl.maximum(length - window, 0)
    begin = first // TILE * TILE
    span = tl.maximum(cached - begin, 0)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(span, MOST_SPLITS), TILE) * TILE, CHUNK)
    splits = tl.maximum(tl.cdiv(span, chunk), 1)
    if worker >= splits:
        return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_PADDED)
    offsets = tl.arange(0, TILE)
    slot = tl.load(slots + row)
    in_group = rows < GROUP
    in_dim = dims < DIM
    real_heads = tl.where(slot < 0, 0, GROUP)
    queries = tl.load(
        query + row * query_row + (head * GROUP + rows)[:, None] * query_head + dims[None, :],
        mask=(rows < real_heads)[:, None] & in_dim[None, :],
        other=0.0,
    )
    target = (row * KV_HEADS + head) * GROUP * DIM + rows[:, None] * DIM + dims[None, :]
    stored = in_group[:, None] & in_dim[None, :]
    table = tables + row * table_row

    for split in range(worker, splits, workers):
        # The new token is taken from its registers, by the owner of the context's end: nobody reads the
        # slot that is written in this launch. Padded rows (slot -1) see zeros and write nothing.
        ends = split == splits - 1
        mine = dims < tl.where(ends & (slot >= 0), DIM, 0)
        new_key = tl.load(key + row * key_row + head * key_head + dims, mask=mine, other=0.0)
        new_value = tl.load(value + row * value_row + head * value_head + dims, mask=mine, other=0.0)
        new_key = new_key.to(keys.dtype.element_ty)
        new_value = new_value.to(values.dtype.element_ty)
        written = slot * (KV_HEADS * DIM) + head * DIM + dims
        tl.store(keys + written, new_key, mask=mine)
        tl.store(values + written, new_value, mask=mine)
        score = tl.sum(queries.to(tl.float32) * new_key.to(tl.float32)[None, :], axis=1) * scale_log2
        peak = tl.where(ends, score, float("-inf"))
        total = tl.zeros([ROWS], tl.float32) + tl.where(ends, 1.0, 0.0)
        mixed = tl.zeros([ROWS, DIM_PADDED], tl.float32) + new_value.to(tl.float32)[None, :]

        start = begin + split * chunk
        end = tl.minimum(start + chunk, cached)
        # Only blocks that an earlier turn has read let a tile be on its way while another is worked on.
        blocks = tl.load(table + (start + offsets) // BLOCK, mask=start + offsets < end, other=0)
        for tile in range(start, end, TILE):
            positions = tile + offsets
            inside = positions < end
            token = blocks.to(tl.int64) * BLOCK + positions % BLOCK
            blocks = tl.load(table + (positions + TILE) // BLOCK, mask=positions + TILE < end, other=0)
            place = token[:, None] * (KV_HEADS * DIM) + head * DIM + dims[None, :]
            if DIM == DIM_PADDED:
                there = inside[:, None]
            else:
                there = inside[:, None] & in_dim[None, :]
            tile_keys = tl.load(keys + place, mask=there, other=0.0)
            tile_values = tl.load(values + place, mask=there, other=0.0)
            scores = tl.dot(queries, tl.trans(tile_keys), input_precision="ieee") * scale_log2
            seen = inside & (positions >= first)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            risen = tl.maximum(peak, tl.max(scores, axis=1))
            fade = tl.exp2(peak - risen)
            weights = tl.exp2(scores - risen[:, None])
            total = total * fade + tl.sum(weights, axis=1)
            mixed = mixed * fade[:, None]
            mixed = tl.dot(weights.to(tile_values.dtype), tile_values, mixed, input_precision="ieee")
            peak = risen

        if splits == 1:
            tl.store(out + target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=stored)
        else:
            part = (pair.to(tl.int64) * capacity + split) * GROUP + rows
            tl.store(parts + part[:, None] * DIM + dims[None, :], mixed, mask=stored)
            tl.store(peaks + part, peak, mask=in_group)
            tl.store(sums + part, total, mask=in_group)

    if splits == 1:
        return
    # All threads' parts are written before one of them counts; the release makes them visible to whoever
    # sees the count. Which program comes last does not change the order in which parts are added.
    tl.debug_barrier()
    done = tl.cdiv(splits - worker, workers)
    if tl.atomic_add(arrived + pair, done, sem="acq_rel") + done < splits:
        return
    tl.store(arrived + pair, 0)
    tl.debug_barrier()
    base = pair.to(tl.int64) * capacity
    members = tl.arange(0, GROUP_PADDED)
    member = members < GROUP
    each = tl.arange(0, MOST_SPLITS)
    listed = (base + each[:, None]) * GROUP + members[None, :]
    known = (each < splits)[:, None] & member[None, :]
    all_peaks = tl.load(peaks + listed, mask=known, other=float("-inf"), cache_modifier=".cg")
    all_sums = tl.load(sums + listed, mask=known, other=0.0, cache_modifier=".cg")
    top = tl.where(member, tl.max(all_peaks, axis=0), 0.0)
    whole = tl.where(member, tl.sum(all_sums * tl.exp2(all_peaks - top[None, :]), axis=0), 1.0)
    # Reading a part takes far longer than adding it, so several are read at once, into sums of their own.
    lanes = tl.zeros([AT_ONCE, GROUP_PADDED, DIM_PADDED], tl.float32)
    for some in range(0, splits, AT_ONCE):
        read = some + tl.arange(0, AT_ONCE)
        part = (base + read[:, None]) * GROUP + members[None, :]
        alive = (read < splits)[:, None] & member[None, :]
        piece = tl.load(
            parts + part[:, :, None] * DIM + dims[None, None, :],
            mask=alive[:, :, None] & in_dim[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        weight = tl.load(peaks + part, mask=alive, other=float("-inf"), cache_modifier=".cg")
        lanes += tl.exp2(weight - top[None, :])[:, :, None] * piece
    joined = tl.sum(lanes, axis=0)
    target = (row * KV_HEADS + head) * GROUP * DIM + members[:, None] * DIM + dims[None, :]
    tl.store(
        out + target,
        (joined / whole[:, None]).to(out.dtype.element_ty),
        mask=member[:, None] & in_dim[None, :],
    )
