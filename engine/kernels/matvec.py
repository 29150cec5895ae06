"""One row times a weight matrix: y = W x with what stands around it in a decoder layer.

A program owns a few outputs and reads their weights once, in order; sums are float32. The first tile of
weights is in registers before the kernel waits for its input. What is read after the sums makes the kernel
that waits wait longer; narrow models, whose kernels are short, ask for it before.
"""

import triton
import triton.language as tl

from engine.kernels.dependent import prefetch, release, wait

PREFETCHERS = tl.constexpr(8)  # programs that ask for the gains: the first ones start before the others


@triton.jit
def matvec(  # type: ignore[no-untyped-def]
    y,
    x,
    w,
    bias,
    residual,
    gain,
    eps,
    N,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SOON: tl.constexpr,
    PDL: tl.constexpr,
):
    """[N] = [N, K] @ [K]; grid (cdiv(N, BN),).

    ``NORM``: of the RMS norm of ``x`` with ``gain``. ``SILU``: ``w`` is [2 N, K], SiLU of the first half of
    the outputs times the second. ``BIAS`` [N or 2 N] and ``RESIDUAL`` [N] are added. ``SOON``: these, and
    the gains, are asked for before the sums.
    """
    first = tl.program_id(0).to(tl.int64) * BN
    rows = first + tl.arange(0, BN)
    columns = tl.arange(0, BK)
    inside = rows < N
    base = w + rows[:, None] * K + columns[None, :]
    there = inside[:, None] & (columns < K)[None, :]
    tile = tl.load(base, mask=there, other=0.0, eviction_policy="evict_first")
    if SILU:
        other = base + N.to(tl.int64) * K
        tile_up = tl.load(other, mask=there, other=0.0, eviction_policy="evict_first")
    if SOON:
        if NORM:  # noqa: SIM102 - one is known when the kernel is compiled, the other is not
            if tl.program_id(0) < PREFETCHERS:
                prefetch(gain, 2 * K, PDL)
        if BIAS:
            offset = tl.load(bias + rows, mask=inside, other=0.0)
            if SILU:
                offset_up = tl.load(bias + N + rows, mask=inside, other=0.0)
    release(PDL)
    wait(PDL)
    if SOON and RESIDUAL:
        before = tl.load(residual + rows, mask=inside, other=0.0)
    total = tl.zeros([BN, BK], tl.float32)
    if SILU:
        total_up = tl.zeros([BN, BK], tl.float32)
    if NORM:
        squares = tl.zeros([BK], tl.float32)
    for k in tl.static_range(0, K, BK):
        at = k + columns
        value = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value *= tl.load(gain + at, mask=at < K, other=0.0).to(tl.float32)
        if k + BK < K:
            there = inside[:, None] & (at + BK < K)[None, :]
            ahead = tl.load(base + k + BK, mask=there, other=0.0, eviction_policy="evict_first")
            if SILU:
                ahead_up = tl.load(other + k + BK, mask=there, other=0.0, eviction_policy="evict_first")
        total += tile.to(tl.float32) * value[None, :]
        if SILU:
            total_up += tile_up.to(tl.float32) * value[None, :]
        if k + BK < K:
            tile = ahead
            if SILU:
                tile_up = ahead_up
    result = tl.sum(total, axis=1)
    if SILU:
        up = tl.sum(total_up, axis=1)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        result *= scale
        if SILU:
            up *= scale
    if not SOON:
        if BIAS:
            offset = tl.load(bias + rows, mask=inside, other=0.0)
            if SILU:
                offset_up = tl.load(bias + N + rows, mask=inside, other=0.0)
        if RESIDUAL:
            before = tl.load(residual + rows, mask=inside, other=0.0)
    if BIAS:
        result += offset.to(tl.float32)
        if SILU:
            up += offset_up.to(tl.float32)
    if SILU:
        result = result * tl.sigmoid(result) * up
    if RESIDUAL:
        result += before.to(tl.float32)
    tl.store(y + rows, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def matvec_join(  # type: ignore[no-untyped-def]
    y,
    parts,
    peaks,
    sums,
    w,
    bias,
    residual,
    N,
    K: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """[N] = [N, K] @ attention + residual, where the attention of one row comes in ``PARTS`` parts.

    ``parts`` [PARTS, K], ``peaks`` and ``sums`` [PARTS, HEADS], all float32, as ``split_attention`` leaves
    them: every program joins them for itself, which is cheaper than a launch that does it once.
    """
    first = tl.program_id(0).to(tl.int64) * BN
    rows = first + tl.arange(0, BN)
    columns = tl.arange(0, BK)
    inside = rows < N
    base = w + rows[:, None] * K + columns[None, :]
    tile = tl.load(base, mask=inside[:, None] & (columns < K)[None, :], other=0.0)
    if BIAS:
        offset = tl.load(bias + rows, mask=inside, other=0.0)
    release(PDL)
    wait(PDL)
    before = tl.load(residual + rows, mask=inside, other=0.0)
    total = tl.zeros([BN, BK], tl.float32)
    for k in tl.static_range(0, K, BK):
        at = k + columns
        there = at < K
        head = at // DIM
        top = tl.full([BK], float("-inf"), tl.float32)
        for part in tl.static_range(PARTS):
            top = tl.maximum(top, tl.load(peaks + part * HEADS + head, mask=there, other=0.0))
        value = tl.zeros([BK], tl.float32)
        whole = tl.zeros([BK], tl.float32)
        for part in tl.static_range(PARTS):
            fade = tl.exp2(tl.load(peaks + part * HEADS + head, mask=there, other=0.0) - top)
            # A part that nobody wrote has no weight and can hold anything.
            share = tl.load(sums + part * HEADS + head, mask=there, other=1.0)
            piece = tl.load(parts + part * K + at, mask=there, other=0.0)
            whole += tl.where(fade > 0, fade * share, 0.0)
            value += tl.where(fade > 0, fade * piece, 0.0)
        value /= whole
        if k + BK < K:
            ahead = tl.load(base + k + BK, mask=inside[:, None] & (at + BK < K)[None, :], other=0.0)
        total += tile.to(tl.float32) * value[None, :]
        if k + BK < K:
            tile = ahead
    result = tl.sum(total, axis=1) + before.to(tl.float32)
    if BIAS:
        result += offset.to(tl.float32)
    tl.store(y + rows, result.to(y.dtype.element_ty), mask=inside)
