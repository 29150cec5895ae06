"""Paged attention of one new token a sequence from the fused projections: rotates, appends and attends.

One launch does what ``rotate``, ``append`` and a decode kernel do, split over keys and values as in flash
decoding (Dao, Haziza, Massa, Sizov 2023). What differs here:

* The first tile of cached keys and values is read before the kernel waits for the projections, and while it
  waits the memory is asked for the weights of the layer that come next: attention over a short context is
  all latency, which this hides.
* Where a context is cut depends on its own length and the padded batch, and parts are added in their order:
  replay and eager launches give the same bits.
"""

import triton
import triton.language as tl

from engine.kernels.dependent import prefetch, release, wait


@triton.jit
def attend_tile(queries, keys, values, seen, scale_log2, peak, total, mixed):
    """The running softmax of flash attention over one more tile; scores are in powers of two."""
    scores = tl.dot(queries, tl.trans(keys)) * scale_log2
    scores = tl.where(seen[None, :], scores, float("-inf"))
    risen = tl.maximum(peak, tl.max(scores, axis=1))
    # A row that has seen nothing yet keeps a peak of minus infinity; its weights must be zero, not NaN.
    level = tl.where(risen == float("-inf"), 0.0, risen)
    fade = tl.exp2(peak - level)
    weights = tl.exp2(scores - level[:, None])
    total = total * fade + tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None])
    return risen, total, mixed


@triton.jit
def is_last(counter, programs):
    """Whether all other ``programs`` have counted; what they wrote before can then be read.

    All threads' pieces are written before one of them counts; the release makes them visible to whoever sees
    the count. Which program comes last does not change the order in which pieces are added.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel") + 1 >= programs
    if last:
        tl.store(counter, 0)
        tl.debug_barrier()
    return last


@triton.jit
def join_pieces(  # type: ignore[no-untyped-def]
    pieces,
    piece_peaks,
    piece_sums,
    place,
    low,
    high,
    step,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Peak, sum and mixture of every ``step``-th of the pieces from ``low`` to ``high``, at most ``MOST``."""
    rows = tl.arange(0, GROUP_ROWS)
    dims = tl.arange(0, DIM)
    member = rows < GROUP
    each = low + step * tl.arange(0, MOST)
    listed = place + each[:, None] * GROUP + rows[None, :]
    known = (each < high)[:, None] & member[None, :]
    all_peaks = tl.load(piece_peaks + listed, mask=known, other=float("-inf"), cache_modifier=".cg")
    all_sums = tl.load(piece_sums + listed, mask=known, other=0.0, cache_modifier=".cg")
    top = tl.where(member, tl.max(all_peaks, axis=0), 0.0)
    total = tl.where(member, tl.sum(all_sums * tl.exp2(all_peaks - top[None, :]), axis=0), 1.0)
    # Reading a piece takes far longer than adding it, so several are read at once.
    joined = tl.zeros([GROUP_ROWS, DIM], tl.float32)
    for some in range(low, high, 4 * step):
        for turn in tl.static_range(4):
            piece = some + turn * step
            at = place + piece * GROUP + rows
            alive = rows < tl.where(piece < high, GROUP, 0)
            there = pieces + at[:, None] * DIM + dims[None, :]
            its_mix = tl.load(there, mask=alive[:, None], other=0.0, cache_modifier=".cg")
            its_peak = tl.load(piece_peaks + at, mask=alive, other=float("-inf"), cache_modifier=".cg")
            joined += its_mix * tl.exp2(its_peak - top)[:, None]
    return top, total, joined


@triton.jit(do_not_specialize=["window", "table_row", "row_stride", "slice_bytes"])
def split_attention(  # type: ignore[no-untyped-def]
    out,
    parts,
    peaks,
    sums,
    pieces,
    piece_peaks,
    piece_sums,
    arrived,
    qkv,
    keys,
    values,
    tables,
    lengths,
    slots,
    inv_freq,
    norm,
    coming,
    slice_bytes,
    scale_log2,
    scaling,
    eps,
    window,
    table_row,
    row_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    GRAIN: tl.constexpr,
    PARTS: tl.constexpr,
    WORKERS: tl.constexpr,
    JOIN: tl.constexpr,
    TOGETHER: tl.constexpr,
    COUNTERS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
    ROPE: tl.constexpr,
    NORM: tl.constexpr,
    PDL: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Grid (rows * KV_HEADS, WORKERS); ``WORKERS`` and ``PARTS`` are powers of two. A context is cut
    into pieces of ``CHUNK`` tokens, or longer ones where there are too few workers. The first ``EARLY`` of a
    piece are read before the projections are there; without ``STAGES`` that is a ``TILE``.

    With one part the result is joined here, by the last program of a sequence and kv head, and goes to
    ``out`` [rows, HEADS, DIM]; of many pieces each ``JOIN`` are joined by their last program before. With
    more parts, which is for a single row, ``parts`` [PARTS, HEADS, DIM] and ``peaks`` and ``sums``
    [PARTS, HEADS] are left for ``matvec_join``; a part that is not needed has a peak of minus infinity.
    ``pieces`` and so on hold [rows * KV_HEADS, WORKERS] unjoined pieces, ``arrived`` counts them with
    ``COUNTERS`` numbers a sequence and kv head, and is zero before and after.

    A row without a slot (-1) writes nothing to the cache; its result is not used.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = DIM // 2
    GROUPS: tl.constexpr = 1 if PARTS > 1 or WORKERS <= 2 * JOIN else WORKERS // JOIN
    pair = tl.program_id(0)
    worker = tl.program_id(1)
    release(PDL)
    if PREFETCH:
        number = (worker * tl.num_programs(0) + pair).to(tl.int64)
        prefetch(coming + number * (slice_bytes // 2), slice_bytes, PREFETCH)
    row = (pair // KV_HEADS).to(tl.int64)
    head = pair % KV_HEADS
    length = tl.load(lengths + row)
    slot = tl.load(slots + row)
    cached = length - 1
    oldest = tl.maximum(length - window, 0)
    begin = oldest // TILE * TILE
    span = tl.maximum(cached - begin, 0)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(span, WORKERS), GRAIN) * GRAIN, CHUNK)
    splits = tl.maximum(tl.cdiv(span, chunk), 1)
    if PARTS > 1:
        together = tl.cdiv(splits, PARTS)  # pieces of a part
    else:
        together = tl.where(splits > 2 * JOIN, JOIN, splits)  # pieces that are joined at once
    used = tl.cdiv(splits, together)
    if worker >= splits:
        return

    dims = tl.arange(0, DIM)
    own = head * DIM + dims
    rows = tl.arange(0, GROUP_ROWS)
    member = rows < GROUP
    table = tables + row * table_row
    start = begin + worker * chunk
    end = tl.minimum(start + chunk, cached)
    if EARLY:
        first = start + tl.arange(0, EARLY)
        inside_first = first < end
        page = tl.load(table + first // BLOCK, mask=inside_first, other=0).to(tl.int64)
        at_first = (page * BLOCK + first % BLOCK)[:, None] * (KV_HEADS * DIM) + own[None, :]
        first_keys = tl.load(keys + at_first, mask=inside_first[:, None], other=0.0)
        first_values = tl.load(values + at_first, mask=inside_first[:, None], other=0.0)
    if ROPE:
        angle = cached.to(tl.float32) * tl.load(inv_freq + dims % HALF)
        cos = tl.cos(angle) * scaling
        sin = tl.sin(angle) * scaling
        sin = tl.where(dims < HALF, -sin, sin)
        turned = (dims + HALF) % DIM
    if NORM:
        gains = norm + (head * GROUP + rows)[:, None] * DIM
        query_gain = tl.load(gains + dims[None, :], mask=member[:, None])
        key_gain = tl.load(norm + (HEADS + head) * DIM + dims)
        if ROPE:
            query_gain_turned = tl.load(gains + turned[None, :], mask=member[:, None])
            key_gain_turned = tl.load(norm + (HEADS + head) * DIM + turned)

    wait(PDL)
    from_row = qkv + row * row_stride
    at_query = from_row + (head * GROUP + rows)[:, None] * DIM
    query = tl.load(at_query + dims[None, :], mask=member[:, None], other=0.0).to(tl.float32)
    if ROPE:
        query_turned = tl.load(at_query + turned[None, :], mask=member[:, None], other=0.0).to(tl.float32)
    if NORM:
        strength = tl.rsqrt(tl.sum(query * query, axis=1) / DIM + eps)[:, None]
        query *= strength * query_gain
        if ROPE:
            query_turned *= strength * query_gain_turned
    if ROPE:
        query = query * cos[None, :] + query_turned * sin[None, :]
    query = tl.where(member[:, None], query, 0.0)
    queries = query.to(keys.dtype.element_ty)

    peak = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    mixed = tl.zeros([GROUP_ROWS, DIM], tl.float32)
    if worker == splits - 1:
        # The new token is taken from its registers by the owner of the context's end: nobody reads the slot
        # that is written in this launch.
        at_key = from_row + (HEADS + head) * DIM
        new_key = tl.load(at_key + dims).to(tl.float32)
        if ROPE:
            key_turned = tl.load(at_key + turned).to(tl.float32)
        if NORM:
            strength_key = tl.rsqrt(tl.sum(new_key * new_key, axis=0) / DIM + eps)
            new_key *= strength_key * key_gain
            if ROPE:
                key_turned *= strength_key * key_gain_turned
        if ROPE:
            new_key = new_key * cos + key_turned * sin
        own_key = new_key.to(keys.dtype.element_ty)
        own_value = tl.load(at_key + KV_HEADS * DIM + dims).to(values.dtype.element_ty)
        written = slot * (KV_HEADS * DIM) + head * DIM + dims
        wanted = dims < tl.where(slot >= 0, DIM, 0)
        tl.store(keys + written, own_key, mask=wanted)
        tl.store(values + written, own_value, mask=wanted)
        peak = tl.sum(queries.to(tl.float32) * own_key.to(tl.float32)[None, :], axis=1) * scale_log2
        total += 1.0
        mixed += own_value.to(tl.float32)[None, :]
    if STAGES == 0:
        positions, inside, tile_keys, tile_values = first, inside_first, first_keys, first_values
        for _ in range(start, end, TILE):
            # The next tile is asked for before this one is worked on.
            later = positions + TILE
            inside_later = later < end
            page = tl.load(table + later // BLOCK, mask=inside_later, other=0).to(tl.int64)
            place = (page * BLOCK + later % BLOCK)[:, None] * (KV_HEADS * DIM) + own[None, :]
            next_keys = tl.load(keys + place, mask=inside_later[:, None], other=0.0)
            next_values = tl.load(values + place, mask=inside_later[:, None], other=0.0)
            seen = inside & (positions >= oldest)
            peak, total, mixed = attend_tile(
                queries, tile_keys, tile_values, seen, scale_log2, peak, total, mixed
            )
            positions, inside = later, inside_later
            tile_keys, tile_values = next_keys, next_values
    else:
        if EARLY:
            seen_first = inside_first & (first >= oldest)
            peak, total, mixed = attend_tile(
                queries, first_keys, first_values, seen_first, scale_log2, peak, total, mixed
            )
            start += EARLY
        offsets = tl.arange(0, TILE)
        if start < end:
            # Only blocks that an earlier turn has read let several tiles be in flight.
            blocks = tl.load(table + (start + offsets) // BLOCK, mask=start + offsets < end, other=0)
            for tile in tl.range(start, end, TILE, num_stages=STAGES):
                positions = tile + offsets
                inside = positions < end
                slots_of = blocks.to(tl.int64) * BLOCK + positions % BLOCK
                place = slots_of[:, None] * (KV_HEADS * DIM) + own[None, :]
                blocks = tl.load(table + (positions + TILE) // BLOCK, mask=positions + TILE < end, other=0)
                tile_keys = tl.load(keys + place, mask=inside[:, None], other=0.0)
                tile_values = tl.load(values + place, mask=inside[:, None], other=0.0)
                seen = inside & (positions >= oldest)
                peak, total, mixed = attend_tile(
                    queries, tile_keys, tile_values, seen, scale_log2, peak, total, mixed
                )

    heads = head * GROUP + rows
    if PARTS > 1:  # noqa: SIM102 - one is known when the kernel is compiled, the other is not
        if worker == 0:  # parts that nobody writes weigh nothing
            part = tl.arange(0, PARTS)
            nobody = (part >= used)[:, None] & member[None, :]
            tl.store(
                peaks + part[:, None] * HEADS + heads[None, :],
                tl.full([PARTS, GROUP_ROWS], float("-inf"), tl.float32),
                mask=nobody,
            )
    if together == 1:
        if PARTS > 1:
            at = worker * HEADS + heads
            tl.store(parts + at[:, None] * DIM + dims[None, :], mixed, mask=member[:, None])
            tl.store(peaks + at, peak, mask=member)
            tl.store(sums + at, total, mask=member)
        else:
            target = out + (row * HEADS + heads)[:, None] * DIM + dims[None, :]
            tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=member[:, None])
        return
    place = pair.to(tl.int64) * WORKERS * GROUP
    at = place + worker * GROUP + rows
    tl.store(pieces + at[:, None] * DIM + dims[None, :], mixed, mask=member[:, None])
    tl.store(piece_peaks + at, peak, mask=member)
    tl.store(piece_sums + at, total, mask=member)
    part = worker // together
    low = part * together
    high = tl.minimum(low + together, splits)
    counter = arrived + pair * COUNTERS
    if not is_last(counter + part, high - low):
        return
    peak, total, mixed = join_pieces(
        pieces, piece_peaks, piece_sums, place, low, high, 1, TOGETHER, GROUP, GROUP_ROWS, DIM
    )
    if GROUPS > 1:  # noqa: SIM102 - one is known when the kernel is compiled, the other is not
        if used > 1:
            # Nobody else reads the first piece of these, so it takes the place of all of them.
            tl.debug_barrier()
            at = place + low * GROUP + rows
            tl.store(pieces + at[:, None] * DIM + dims[None, :], mixed, mask=member[:, None])
            tl.store(piece_peaks + at, peak, mask=member)
            tl.store(piece_sums + at, total, mask=member)
            if not is_last(counter + GROUPS, used):
                return
            peak, total, mixed = join_pieces(
                pieces, piece_peaks, piece_sums, place, 0, splits, together, GROUPS, GROUP, GROUP_ROWS, DIM
            )
    if PARTS > 1:
        at = part * HEADS + heads
        tl.store(parts + at[:, None] * DIM + dims[None, :], mixed, mask=member[:, None])
        tl.store(peaks + at, peak, mask=member)
        tl.store(sums + at, total, mask=member)
    else:
        target = out + (row * HEADS + heads)[:, None] * DIM + dims[None, :]
        tl.store(target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=member[:, None])
