"""A few rows times a weight matrix on tensor cores: the weights are the left operand and are read once.

RMS norms are put off: whoever writes the rows also writes them times the next norm's gain, and the sum of
their squares, a part from each program; whoever multiplies scales its results in the end. A row's factor
commutes with the product, so no program needs a whole row before it starts.
"""

import triton
import triton.language as tl

from engine.kernels.dependent import release, wait


@triton.jit
def norm_parts(  # type: ignore[no-untyped-def]
    squares,
    row,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
):
    """Parts of the sum of squares of each row, [PARTS_PADDED, ROWS_PADDED]."""
    part = tl.arange(0, PARTS_PADDED)
    there = (part < PARTS)[:, None] & (row < ROWS)[None, :]
    return tl.load(squares + part[:, None] * ROWS_PADDED + row[None, :], mask=there, other=0.0)


@triton.jit
def matrows(  # type: ignore[no-untyped-def]
    y,
    x,
    w,
    bias,
    residual,
    gain,
    gained,
    squares,
    squares_in,
    partial,
    arrived,
    eps,
    N,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    ROWS_PADDED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    CUTS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EMIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """[ROWS, N] = [ROWS, K] @ [N, K]^T; grid (cdiv(N, BN), CUTS).

    ``CUTS`` programs share the inputs of an output: each leaves its sums in ``partial``
    [grid, CUTS, BN, ROWS_PADDED] and the last one adds them in their order; ``arrived`` [grid] counts, and is
    zero before and after. ``SPLIT`` pieces of a tile's inputs go to as many warps and are added in the end.
    ``EARLY``: the first tile of weights is in registers before the kernel waits for its input.

    ``NORM``: ``x`` is rows times gain, results are scaled by the norm from ``squares_in``
    [PARTS, ROWS_PADDED]. ``EMIT``: the result times ``gain`` goes to ``gained``, its sums of squares to
    ``squares`` [grid, ROWS_PADDED]. ``SILU``, ``BIAS`` and ``RESIDUAL`` as in ``matvec``.
    """
    PER: tl.constexpr = (K + CUTS * BK - 1) // (CUTS * BK) * BK
    cut = tl.program_id(1)
    begin = cut * PER
    end = tl.minimum(begin + PER, K)
    first = tl.program_id(0).to(tl.int64) * BN
    outs = first + tl.arange(0, BN)
    row = tl.arange(0, ROWS_PADDED)
    inside = outs < N
    PIECE: tl.constexpr = BK // SPLIT
    upper = N.to(tl.int64) * K  # from the first half of the outputs to the second
    if SPLIT == 1:
        columns = tl.arange(0, BK)[None, :]
        depth = tl.arange(0, BK)[:, None]
        rowed, owned = row[None, :], inside[:, None]
        weights = w + outs[:, None] * K + columns
    else:
        pieces = tl.arange(0, SPLIT)[:, None, None] * PIECE
        columns = pieces + tl.arange(0, PIECE)[None, None, :]
        depth = pieces + tl.arange(0, PIECE)[None, :, None]
        rowed, owned = row[None, None, :], inside[None, :, None]
        weights = w + outs[None, :, None] * K + columns
    values = x + rowed * K + depth
    if SPLIT == 1:
        total = tl.zeros([BN, ROWS_PADDED], tl.float32)
        total_up = tl.zeros([BN, ROWS_PADDED], tl.float32)
    else:
        total = tl.zeros([SPLIT, BN, ROWS_PADDED], tl.float32)
        total_up = tl.zeros([SPLIT, BN, ROWS_PADDED], tl.float32)
    if EARLY:
        known = owned & (begin + columns < end)
        early = tl.load(weights + begin, mask=known, other=0.0)
        if SILU:
            early_up = tl.load(weights + upper + begin, mask=known, other=0.0)
    # What the end needs is asked for before the sums, so that nobody waits for it then.
    if BIAS:
        offset = tl.load(bias + outs, mask=inside, other=0.0)
        if SILU:
            offset_up = tl.load(bias + N + outs, mask=inside, other=0.0)
    if EMIT:
        strength = tl.load(gain + outs, mask=inside, other=0.0)
    at = row[None, :] * N + outs[:, None]
    kept = inside[:, None] & (row < ROWS)[None, :]
    release(PDL)
    wait(PDL)
    if NORM:
        parts = norm_parts(squares_in, row, ROWS, ROWS_PADDED, PARTS, PARTS_PADDED)
    if RESIDUAL:
        before = tl.load(residual + at, mask=kept, other=0.0)
    start = begin
    if EARLY:
        value = tl.load(values + begin, mask=(rowed < ROWS) & (begin + depth < end), other=0.0)
        total = tl.dot(early, value, total)
        if SILU:
            total_up = tl.dot(early_up, value, total_up)
        start += BK
    for k in tl.range(start, end, BK, num_stages=STAGES):
        if K % BK == 0:
            deep, wide = owned, rowed < ROWS
        else:
            deep, wide = owned & (k + columns < K), (rowed < ROWS) & (k + depth < K)
        value = tl.load(values + k, mask=wide, other=0.0)
        tile = tl.load(weights + k, mask=deep, other=0.0)
        total = tl.dot(tile, value, total)
        if SILU:
            tile_up = tl.load(weights + upper + k, mask=deep, other=0.0)
            total_up = tl.dot(tile_up, value, total_up)
    if SPLIT > 1:
        total = tl.sum(total, axis=0)
        total_up = tl.sum(total_up, axis=0)
    if CUTS > 1:
        place = tl.arange(0, BN)[:, None] * ROWS_PADDED + row[None, :]
        mine = partial + (tl.program_id(0) * CUTS + cut) * (BN * ROWS_PADDED)
        tl.store(mine + place, total)
        # All threads' sums are written before one of them counts; the release makes them visible.
        tl.debug_barrier()
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") + 1 < CUTS:
            return
        tl.store(arrived + tl.program_id(0), 0)
        tl.debug_barrier()
        total = tl.zeros([BN, ROWS_PADDED], tl.float32)
        all_cuts = partial + tl.program_id(0) * (CUTS * BN * ROWS_PADDED)
        for other in tl.static_range(CUTS):
            total += tl.load(all_cuts + other * (BN * ROWS_PADDED) + place, cache_modifier=".cg")
    if NORM:
        scale = tl.rsqrt(tl.sum(parts, axis=0) / K + eps)
        total *= scale[None, :]
        if SILU:
            total_up *= scale[None, :]
    if BIAS:
        total += offset.to(tl.float32)[:, None]
        if SILU:
            total_up += offset_up.to(tl.float32)[:, None]
    if SILU:
        total = total * tl.sigmoid(total) * total_up
    if RESIDUAL:
        total += before.to(tl.float32)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=kept)
    if EMIT:
        again = tl.where(kept, rounded.to(tl.float32), 0.0)
        tl.store(
            gained + at, (again * strength.to(tl.float32)[:, None]).to(gained.dtype.element_ty), mask=kept
        )
        tl.store(squares + tl.program_id(0) * ROWS_PADDED + row, tl.sum(again * again, axis=0))


@triton.jit
def embed(  # type: ignore[no-untyped-def]
    x,
    gained,
    squares,
    ids,
    table,
    gain,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    EMIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows of ``table`` [V, K] by ``ids`` into ``x`` [rows, K]; grid (rows,). ``EMIT`` as in ``matrows``,
    with one part of squares. The next kernel starts when this one has ended.
    """
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < K
    value = tl.load(table + tl.load(ids + row) * K + columns, mask=inside, other=0.0)
    tl.store(x + row * K + columns, value, mask=inside)
    if EMIT:
        wide = value.to(tl.float32)
        strength = tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(gained + row * K + columns, (wide * strength).to(gained.dtype.element_ty), mask=inside)
        tl.store(squares + row, tl.sum(wide * wide, axis=0))
