"""What stands between the matrix products of a decoder layer, one launch each."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(x, delta, weight, out, eps, N: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    value = tl.load(x + row * N + columns, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row * N + columns, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(x + row * N + columns, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / N + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + columns, (wide * scale * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    qk,
    positions,
    inv_freq,
    weight,
    row_stride,
    scaling,
    eps,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NORM: tl.constexpr,
    ROPE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, HALF_PADDED)
    inside = columns < HALF
    left = qk + token * row_stride + head * (2 * HALF) + columns
    a = tl.load(left, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(left + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / (2 * HALF) + eps)
        gains = weight + head * (2 * HALF) + columns
        a *= scale * tl.load(gains, mask=inside, other=0.0).to(tl.float32)
        b *= scale * tl.load(gains + HALF, mask=inside, other=0.0).to(tl.float32)
    if ROPE:
        angle = tl.load(positions + token).to(tl.float32) * tl.load(
            inv_freq + columns, mask=inside, other=0.0
        )
        cos, sin = tl.cos(angle) * scaling, tl.sin(angle) * scaling
        a, b = a * cos - b * sin, b * cos + a * sin
    tl.store(left, a.to(qk.dtype.element_ty), mask=inside)
    tl.store(left + HALF, b.to(qk.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(gate_up, out, N: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    gate = tl.load(gate_up + row * 2 * N + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * N + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """``x += delta`` in place, and its RMS norm: both [T, N], contiguous; ``weight`` [N]."""
    rows, size = x.shape
    out = x.new_empty(rows, size)
    block = triton.next_power_of_2(size)
    _add_rms_norm[(rows,)](
        x,
        x if delta is None else delta,
        weight,
        out,
        eps,
        N=size,
        BLOCK=block,
        ADD=delta is not None,
        num_warps=min(16, max(1, block // 512)),
    )
    return out


def rotate(
    qk: Tensor,
    heads: int,
    dim: int,
    positions: Tensor | None,
    inv_freq: Tensor | None,
    scaling: float,
    weight: Tensor | None,
    eps: float,
) -> None:
    """RMS norm per head, where there is a ``weight`` [heads, dim], and rotary positions, in place.

    Args:
        qk: [T, ...], the first ``heads * dim`` columns are queries and keys, head after head.
        positions: [T] int64.
        inv_freq: [dim / 2] float32; None rotates nothing.
        scaling: factor on cosine and sine.
    """
    if inv_freq is None and weight is None:
        return
    half = dim // 2
    _rotate[(qk.shape[0], heads)](
        qk,
        qk if positions is None else positions,
        qk if inv_freq is None else inv_freq,
        qk if weight is None else weight,
        qk.stride(0),
        scaling,
        eps,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        NORM=weight is not None,
        ROPE=inv_freq is not None,
        num_warps=1,
    )


def silu_mul(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of the columns times the second: [T, 2 N] contiguous -> [T, N]."""
    rows, both = gate_up.shape
    size = both // 2
    out = gate_up.new_empty(rows, size)
    block = min(1024, triton.next_power_of_2(size))
    _silu_mul[(rows, triton.cdiv(size, block))](gate_up, out, N=size, BLOCK=block, num_warps=4)
    return out
