"""The most likely token of each row, in two launches: candidates of slices, then the best of them.

Each starts while the one before runs, on cards that can do that (``engine.kernels.dependent``).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.dependent import launches_dependently, release, wait

SLICE = 4096


@triton.jit
def _slices(  # type: ignore[no-untyped-def]
    logits, best, where, V, SLICE: tl.constexpr, SLICES: tl.constexpr, PDL: tl.constexpr
):
    release(PDL)
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * SLICE + tl.arange(0, SLICE)
    value = tl.load(logits + row * V + columns, mask=columns < V, other=float("-inf"))
    value = tl.where(value != value, float("inf"), value)  # not a number: no token
    top = tl.max(value, axis=0)
    tl.store(best + row * SLICES + part, top)
    tl.store(where + row * SLICES + part, tl.min(tl.where(value == top, columns, V), axis=0))


@triton.jit
def first_of_highest(  # type: ignore[no-untyped-def]
    values, places, row, V, SLICES: tl.constexpr, PADDED: tl.constexpr
):
    """The highest of the ``SLICES`` values of a row, and the first place of those that have it."""
    part = tl.arange(0, PADDED)
    there = part < SLICES
    value = tl.load(values + row * SLICES + part, mask=there, other=float("-inf"))
    place = tl.load(places + row * SLICES + part, mask=there, other=V)
    top = tl.max(value, axis=0)
    return top, tl.min(tl.where(value == top, place, V), axis=0)


@triton.jit
def _best(  # type: ignore[no-untyped-def]
    tokens, best, where, V, SLICES: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr
):
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    top, first = first_of_highest(best, where, row, V, SLICES, PADDED)
    finite = (top > float("-inf")) & (top < float("inf"))
    tl.store(tokens + row, tl.where(finite, first.to(tl.int64), -1))


def greedy(logits: Tensor, out: Tensor) -> None:
    """[n, V] float32, contiguous -> [n] int64: the first of the highest, -1 where that is not finite."""
    rows, vocab = logits.shape
    slices = triton.cdiv(vocab, SLICE)
    best = logits.new_empty(rows, slices)
    where = best.new_empty(rows, slices, dtype=torch.int32)
    dependent = launches_dependently(logits.device)
    launch = {"PDL": dependent, **({"launch_pdl": True} if dependent else {})}
    padded = triton.next_power_of_2(slices)
    _slices[(rows, slices)](logits, best, where, vocab, SLICE=SLICE, SLICES=slices, num_warps=8, **launch)
    _best[(rows,)](out, best, where, vocab, SLICES=slices, PADDED=padded, num_warps=1, **launch)
