"""Programmatic dependent launch: a kernel may start while the one before it still runs.

What does not depend on that kernel is done before ``wait``: loading weights, asking for weights that come
next. After ``wait`` everything that kernels before it wrote is there. Needs a device of compute capability
9.0; elsewhere, and in the interpreter, ``ON`` is false and the order of launches says the same.

Of a chain of such kernels only direct neighbours overlap, because each one waits before it ends.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def release(ON: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel start as soon as there is room for it."""
    if ON:
        gdc_launch_dependents()


@triton.jit
def wait(ON: tl.constexpr):  # type: ignore[no-untyped-def]
    """Until the kernel before this one has ended and its writes can be seen."""
    if ON:
        gdc_wait()


@triton.jit
def prefetch(address, size, ON: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ask for ``size`` bytes from ``address`` on, a multiple of 16, to come into the L2 cache."""
    if ON:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0;"
            " @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
            "=r,l,r",
            [address.to(tl.int64), size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@cache
def launches_dependently(device: torch.device) -> bool:
    """Whether a device can do that."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
