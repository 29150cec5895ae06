"""New keys and values of a layer into their slots of the paged cache, in one launch."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _append(  # type: ignore[no-untyped-def]
    keys,
    values,
    key,
    value,
    slots,
    key_token,
    key_head,
    key_dim,
    value_token,
    value_head,
    value_dim,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.arange(0, HEADS_PADDED)[:, None]
    dim = tl.arange(0, DIM_PADDED)[None, :]
    there = (head < HEADS) & (dim < DIM)
    target = slot * (HEADS * DIM) + head * DIM + dim
    new = tl.load(key + token * key_token + head * key_head + dim * key_dim, mask=there)
    tl.store(keys + target, new.to(keys.dtype.element_ty), mask=there)
    new = tl.load(value + token * value_token + head * value_head + dim * value_dim, mask=there)
    tl.store(values + target, new.to(values.dtype.element_ty), mask=there)


def append(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Write new tokens into the pages of one layer; no host value of a tensor is read.

    Args:
        keys: [num_blocks, block_size, kv heads, head dim], contiguous; ``values`` the same.
        key: [T, kv heads, head dim], any strides; ``value`` the same.
        slots: [T] int64, flat slots; a negative one writes nothing.
    """
    tokens, heads, dim = key.shape
    if not tokens:
        return
    _append[(tokens,)](
        keys,
        values,
        key,
        value,
        slots,
        *key.stride(),
        *value.stride(),
        HEADS=heads,
        DIM=dim,
        HEADS_PADDED=triton.next_power_of_2(heads),
        DIM_PADDED=triton.next_power_of_2(dim),
        num_warps=1 if heads * dim <= 512 else 4,
    )
