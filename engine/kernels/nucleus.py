"""The bound of top-p over logits as they are, found digit by digit, as in a radix select.

Each launch sums the mass of sixteen ranges of distances to the most likely token, the next one takes the
range where the wanted mass is reached. Only slices that have tokens in that range are read again. Masses are
integers, so their sums do not depend on the order. Distances are told apart to ``2**-19``: tokens whose
probabilities differ by less than 2 in a million are inside or outside together.
"""

import triton
import triton.language as tl

from engine.kernels.dependent import release, wait
from engine.mass import WHOLE

# What differs from batch to batch has no kernels of its own: compiling one takes far longer than a step.
COUNTS = ["rows", "stride", "greedy_stride", "level", "shift", "select_p"]
COLUMNS = ["greedy", "temperatures", "top_ks", "top_ps", "min_ps", "seeds", "positions", "tokens"]
DIGIT = 4  # bits of a distance that a launch finds
LEVELS = 6
UNIT = tl.constexpr(float(1 << 19))  # of distances
FARTHEST = tl.constexpr(float(1 << (DIGIT * LEVELS - 19)))  # nats; tokens from here on have no mass
MASS = tl.constexpr(float(WHOLE))
# Of a row's state, int64: digits found so far, mass below them, mass that is wanted.
FOUND, BELOW, WANTED, STATE = (tl.constexpr(value) for value in range(4))


@triton.jit
def is_drawn(greedy, top_ks, row, greedy_stride):
    return (tl.load(greedy + row * greedy_stride) == 0) & (tl.load(top_ks + row) == 0)


@triton.jit
def highest_of(best, row, SLICES: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    part = tl.arange(0, PADDED)
    return tl.max(tl.load(best + row * SLICES + part, mask=part < SLICES, other=float("-inf")), axis=0)


@triton.jit
def scaled_of(logits, row, columns, V, highest, temperature):
    """Logits over temperature with a maximum of 0."""
    value = tl.load(logits + row * V + columns, mask=columns < V, other=float("-inf"))
    return (value - highest) / temperature


@triton.jit
def distance_of(scaled):
    """Of the most likely token, int32 in units."""
    return (tl.minimum(-scaled, FARTHEST - 1.0 / UNIT) * UNIT).to(tl.int32)


@triton.jit
def narrowed(  # type: ignore[no-untyped-def]
    state, sums, row, rows, level, top_p, SLICES: tl.constexpr, PADDED: tl.constexpr, DIGITS: tl.constexpr
):
    """State of a row behind the sums of ``level``, and the digit that was found."""
    part = tl.arange(0, PADDED)[:, None]
    digits = tl.arange(0, DIGITS)
    at = ((level * rows + row) * SLICES + part) * DIGITS + digits[None, :]
    reached = tl.sum(tl.load(sums + at, mask=part < SLICES, other=0), axis=0)  # up to each digit
    if level == 0:
        found = tl.full([], 0, tl.int64)
        below = tl.full([], 0, tl.int64)
        share = tl.max(reached, axis=0).to(tl.float64) * top_p
        wanted = share.to(tl.int64)
        wanted = tl.maximum(wanted + (wanted.to(tl.float64) < share).to(tl.int64), 1)
    else:
        before = state + ((level - 1) * rows + row) * STATE
        found = tl.load(before + FOUND)
        below = tl.load(before + BELOW)
        wanted = tl.load(before + WANTED)
    short = below + reached < wanted
    digit = tl.minimum(tl.sum(short.to(tl.int32), axis=0), DIGITS - 1)
    below += tl.max(tl.where(short, reached, 0), axis=0)
    return found * DIGITS + digit, below, wanted, digit


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=COLUMNS)
def narrow(  # type: ignore[no-untyped-def]
    logits,
    best,
    greedy,
    temperatures,
    top_ks,
    top_ps,
    state,
    sums,
    rows,
    V,
    stride,
    greedy_stride,
    level,
    shift,
    SLICE: tl.constexpr,
    SLICES: tl.constexpr,
    PADDED: tl.constexpr,
    DIGITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, SLICES): the mass of a slice up to each value of the next digit of its distances."""
    release(PDL)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    if not is_drawn(greedy, top_ks, row, greedy_stride):
        return
    top_p = tl.load(top_ps + row)
    if top_p >= 1.0:
        return
    own = sums + ((level * rows + row) * SLICES + part) * DIGITS
    if level > 0:
        found, below, wanted, digit = narrowed(
            state, sums, row, rows, level - 1, top_p, SLICES, PADDED, DIGITS
        )
        if part == 0:
            now = state + ((level - 1) * rows + row) * STATE
            tl.store(now + FOUND, found)
            tl.store(now + BELOW, below)
            tl.store(now + WANTED, wanted)
        # Where no token of the slice is in the range there is nothing to read.
        before = sums + (((level - 1) * rows + row) * SLICES + part) * DIGITS
        lower = tl.load(before + tl.maximum(digit - 1, 0))
        if tl.load(before + digit) == tl.where(digit > 0, lower, 0):
            tl.store(own + tl.arange(0, DIGITS), tl.zeros([DIGITS], tl.int64))
            return
    else:
        found = tl.full([], 0, tl.int64)
    highest = highest_of(best, row, SLICES, PADDED)
    temperature = tl.load(temperatures + row * stride)
    columns = part * SLICE + tl.arange(0, SLICE)
    scaled = scaled_of(logits, row, columns, V, highest, temperature)
    value = (distance_of(scaled) >> shift) - (found * DIGITS).to(tl.int32)
    mass = tl.where((columns < V) & (value >= 0), (tl.exp(scaled) * MASS).to(tl.int64), 0)
    for digit in tl.static_range(DIGITS):
        tl.store(own + digit, tl.sum(tl.where(value <= digit, mass, 0), axis=0))
