"""A token for every row of logits, drawn at its temperature inside its top-p and min-p, in few launches.

Logits are read as they are and nothing as wide as they are is written: tokens are drawn by adding noise
(``engine.noise``) to what lies inside the bounds (``engine.kernels.nucleus``).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.dependent import launches_dependently, release, wait
from engine.kernels.greedy import _slices, first_of_highest
from engine.kernels.nucleus import (
    COLUMNS,
    COUNTS,
    DIGIT,
    LEVELS,
    STATE,
    WANTED,
    distance_of,
    highest_of,
    is_drawn,
    narrow,
    narrowed,
    scaled_of,
)
from engine.mass import WHOLE
from engine.noise import MIX_32, MIX_64, POSITION, START
from engine.sampling_batch import SamplingBatch

SLICE, SMALL_SLICE = 4096, 2048
FEW_ROWS = 4  # leave most of a card idle where slices are large
WARPS = 8
ONE = tl.constexpr(WHOLE)
FIRST, SECOND = (tl.constexpr(value & 0xFFFFFFFF) for value in MIX_32)
FIRST_64, SECOND_64, START_64, POSITION_64 = (
    tl.constexpr(value & 0xFFFFFFFFFFFFFFFF) for value in (*MIX_64, START, POSITION)
)


@triton.jit
def _mixed(bits):
    bits = (bits ^ (bits >> 30)) * FIRST_64
    bits = (bits ^ (bits >> 27)) * SECOND_64
    return bits ^ (bits >> 31)


@triton.jit
def _log_exponential(seed, position, ids):
    """See ``engine.noise.log_exponential``: the same bits, and logarithms as near as the device's are."""
    key = _mixed(_mixed(seed.to(tl.uint64) + START_64) + position.to(tl.uint64) * POSITION_64)
    bits = ids.to(tl.uint32) ^ key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * FIRST
    bits = bits ^ (key >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * SECOND
    bits = (bits ^ (bits >> 15)) & 0x7FFFFFFF
    uniform = (bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2 ** -31
    uniform = tl.minimum(uniform, 1.0 - 2.0**-24)
    # log1p as Kahan has it: the rounding of 1 - u is made good by dividing by what it came to.
    rest = 1.0 - uniform
    exponential = tl.where(rest == 1.0, uniform, tl.log(rest) * uniform / (rest - 1.0))
    return tl.log(exponential)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=COLUMNS)
def _drawn(  # type: ignore[no-untyped-def]
    logits,
    best,
    greedy,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    state,
    sums,
    peaks,
    places,
    rows,
    V,
    stride,
    greedy_stride,
    select_p,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,
    PADDED: tl.constexpr,
    DIGITS: tl.constexpr,
    LEVELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, SLICES): the highest of logits plus noise inside the bounds, and where it is."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if not is_drawn(greedy, top_ks, row, greedy_stride):
        return
    highest = highest_of(best, row, SLICES, PADDED)
    columns = part * SLICE + tl.arange(0, SLICE)
    scaled = scaled_of(logits, row, columns, V, highest, tl.load(temperatures + row * stride))
    min_p = tl.load(min_ps + row * stride)
    inside = scaled >= tl.where(min_p > 0.0, tl.log(tl.maximum(min_p, 1e-38)), float("-inf"))
    top_p = tl.load(top_ps + row)
    if (select_p != 0) & (top_p < 1.0):
        found, _, _, _ = narrowed(state, sums, row, rows, LEVELS - 1, top_p, SLICES, PADDED, DIGITS)
        inside &= distance_of(scaled) <= found
    peak = float("-inf")
    place = V
    if tl.max(inside.to(tl.int32), axis=0) > 0:
        noise = _log_exponential(tl.load(seeds + row), tl.load(positions + row), columns)
        drawn = tl.where(inside, scaled - noise, float("-inf"))
        peak = tl.max(drawn, axis=0)
        place = tl.min(tl.where(drawn == peak, columns, V), axis=0)
    tl.store(peaks + row * SLICES + part, peak)
    tl.store(places + row * SLICES + part, place)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=COLUMNS)
def _chosen(  # type: ignore[no-untyped-def]
    tokens,
    best,
    where,
    peaks,
    places,
    greedy,
    top_ks,
    top_ps,
    state,
    rows,
    V,
    greedy_stride,
    select_p,
    SLICES: tl.constexpr,
    PADDED: tl.constexpr,
    LEVELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows): the token of a row, -1 where the highest logit is not finite."""
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    top, token = first_of_highest(best, where, row, V, SLICES, PADDED)
    draws = is_drawn(greedy, top_ks, row, greedy_stride)
    if draws & (select_p != 0) & (tl.load(top_ps + row) < 1.0):
        wanted = tl.load(state + ((LEVELS - 2) * rows + row) * STATE + WANTED)
        draws = wanted > ONE  # else the most likely token is all that there is
    if draws:
        _, token = first_of_highest(peaks, places, row, V, SLICES, PADDED)
    finite = (top > float("-inf")) & (top < float("inf"))
    tl.store(tokens + row, tl.where(finite, token, -1).to(tl.int64))


def draw(logits: Tensor, batch: SamplingBatch, out: Tensor | None = None) -> Tensor:
    """Tokens of the rows that are greedy, or drawn without a top-k; other rows get their most likely one.

    Args:
        logits: [n, V] float32, contiguous.
        batch: the parameters of the same rows; all penalties are in the logits. Columns lie without gaps,
            but temperatures and min-p may both have the same, and greedy marks some.
        out: [n] int64 to write to.

    Returns:
        [n] int64, ``out`` where it was given; -1 where the highest logit is not finite.
    """
    rows, vocab = logits.shape
    slice_size = SLICE if rows > FEW_ROWS else SMALL_SLICE
    out = logits.new_empty(rows, dtype=torch.int64) if out is None else out
    slices = triton.cdiv(vocab, slice_size)
    select_p = batch.kind.select_p
    levels = LEVELS if select_p else 0
    best, peaks = logits.new_empty(2, rows, slices)
    where, places = best.new_empty(2, rows, slices, dtype=torch.int32)
    sums = best.new_empty(levels * rows * slices << DIGIT, dtype=torch.int64)
    state = best.new_empty(levels * rows * STATE.value, dtype=torch.int64)
    stride, greedy_stride = batch.temperature.stride(0), batch.greedy.stride(0)
    dependent = launches_dependently(logits.device)
    launch: dict[str, Any] = {"PDL": dependent, **({"launch_pdl": True} if dependent else {})}
    cut: dict[str, Any] = {"SLICES": slices, "PADDED": triton.next_power_of_2(slices)}
    grid = (rows, slices)
    _slices[grid](logits, best, where, vocab, SLICE=slice_size, SLICES=slices, num_warps=WARPS, **launch)
    for level in range(levels):
        narrow[grid](
            logits,
            best,
            batch.greedy,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            state,
            sums,
            rows,
            vocab,
            stride,
            greedy_stride,
            level,
            (LEVELS - 1 - level) * DIGIT,
            SLICE=slice_size,
            DIGITS=1 << DIGIT,
            num_warps=WARPS,
            **cut,
            **launch,
        )
    _drawn[grid](
        logits,
        best,
        batch.greedy,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        batch.seed,
        batch.position,
        state,
        sums,
        peaks,
        places,
        rows,
        vocab,
        stride,
        greedy_stride,
        int(select_p),
        SLICE=slice_size,
        DIGITS=1 << DIGIT,
        LEVELS=LEVELS,
        num_warps=WARPS,
        **cut,
        **launch,
    )
    _chosen[(rows,)](
        out,
        best,
        where,
        peaks,
        places,
        batch.greedy,
        batch.top_k,
        batch.top_p,
        state,
        rows,
        vocab,
        greedy_stride,
        int(select_p),
        LEVELS=LEVELS,
        num_warps=1,
        **cut,
        **launch,
    )
    return out
