"""The small operations of the fused decoder: by torch anywhere, by Triton kernels on CUDA."""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Rope(NamedTuple):
    """Rotary positions of one launch: [T] int64 positions, [dim / 2] float32 frequencies, a factor.

    ``cos`` and ``sin`` are [T, 1, dim / 2] float32 where torch computes them once for all layers.
    """

    positions: Tensor
    inv_freq: Tensor
    scaling: float
    cos: Tensor | None = None
    sin: Tensor | None = None


class FusedOps(Protocol):
    """What a decoder layer needs beside matrix products and attention."""

    def rope(self, positions: Tensor, inv_freq: Tensor, scaling: float) -> Rope:
        """What ``rotate`` needs to know of a launch."""
        ...

    def add_rms_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """``x += delta`` in place, and its RMS norm: both [T, N], contiguous; ``weight`` [N]."""
        ...

    def rotate(
        self, qk: Tensor, heads: int, dim: int, rope: Rope | None, weight: Tensor | None, eps: float
    ) -> None:
        """RMS norm per head, where there is a ``weight`` [heads, dim], and rotary positions, in place.

        The first ``heads * dim`` columns of ``qk`` are queries and keys, head after head.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SiLU of the first half of the columns times the second: [T, 2 N] -> [T, N]."""
        ...


class TorchOps:
    """Runs anywhere; sums, cosines and norms in float32."""

    def rope(self, positions: Tensor, inv_freq: Tensor, scaling: float) -> Rope:
        """See ``FusedOps``."""
        angles = (positions.float()[:, None] * inv_freq)[:, None]
        return Rope(positions, inv_freq, scaling, angles.cos() * scaling, angles.sin() * scaling)

    def add_rms_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """See ``FusedOps``."""
        if delta is not None:
            x += delta
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def rotate(
        self, qk: Tensor, heads: int, dim: int, rope: Rope | None, weight: Tensor | None, eps: float
    ) -> None:
        """See ``FusedOps``."""
        if rope is None and weight is None:
            return
        target = qk[:, : heads * dim].unflatten(1, (heads, dim))
        value = target.float()
        if weight is not None:
            value = F.rms_norm(value, (dim,), None, eps).mul_(weight)
        if rope is not None:
            left, right = value.chunk(2, dim=-1)
            value = torch.cat(
                (left * rope.cos - right * rope.sin, right * rope.cos + left * rope.sin), dim=-1
            )
        target.copy_(value)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See ``FusedOps``."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class TritonOps:
    """One launch each, on CUDA."""

    def __init__(self) -> None:
        from engine.kernels import elementwise

        self._kernels = elementwise

    def rope(self, positions: Tensor, inv_freq: Tensor, scaling: float) -> Rope:
        """See ``FusedOps``."""
        return Rope(positions, inv_freq, scaling)

    def add_rms_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """See ``FusedOps``."""
        return self._kernels.add_rms_norm(x, delta, weight, eps)

    def rotate(
        self, qk: Tensor, heads: int, dim: int, rope: Rope | None, weight: Tensor | None, eps: float
    ) -> None:
        """See ``FusedOps``."""
        if rope is None:
            self._kernels.rotate(qk, heads, dim, None, None, 1.0, weight, eps)
        else:
            self._kernels.rotate(qk, heads, dim, rope.positions, rope.inv_freq, rope.scaling, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See ``FusedOps``."""
        return self._kernels.silu_mul(gate_up)


def fused_ops(device: torch.device) -> FusedOps:
    """Triton's where they can run, else torch's."""
    if device.type == "cuda":
        try:
            return TritonOps()
        except ImportError:
            pass
    return TorchOps()
