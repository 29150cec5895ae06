"""Floating-point weights in four or eight bits, rounded as they are loaded: ``--quant int4`` and ``int8``."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.models.arena import ALIGNMENT
from engine.models.gguf_weights import is_matrix
from engine.models.packed import GROUP, Nibbles, PackedWeight
from engine.models.packer import Packer
from engine.models.tiled import LANES, TiledWeight, tile_bytes

Bits = Literal[4, 8]
HEADS = ("lm_head.", "model.embed_tokens.")  # tied models have the second alone
HEAD_BITS: Bits = 8  # of the output projection, whose error goes straight into the logits
AT_ONCE = 4096  # outputs rounded at a time


class QuantisedWeights:
    """Rounds the linears of a transformers module, in groups of 32 inputs.

    Four bits run from the least to the greatest value of a group (the form of GGUF's Q4_1); eight are
    symmetric around zero (that of Q8_0). Matrices whose inputs are no multiple of 32 keep their numbers.

    Args:
        bits: of the layers' matrices.
        shapes: [out, in] of every weight by its name, as the module has them.
        dtype: in which the engine computes.
        tiled, untiled: see ``Packer``.
    """

    def __init__(
        self,
        bits: Bits,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        *,
        tiled: bool = False,
        untiled: str = "",
    ) -> None:
        self.bits = bits
        self.dtype = dtype
        self._shapes = shapes
        self.packer = Packer(dtype, False, tiled=tiled, tiled_bytes=self._matrix_bytes(), untiled=untiled)

    def weight(self, names: Sequence[str], weights: Sequence[Tensor]) -> PackedWeight | TiledWeight | Tensor:
        """See ``Packing``."""
        return self.packer.fuse([self._part(weight, self.bits) for weight in weights], weights)

    def head(self, weight: Tensor) -> PackedWeight | TiledWeight | None:
        """See ``Packing``."""
        return self.packer.head(self._part(weight, HEAD_BITS), weight)

    def num_bytes(self) -> int:
        """About what all weights will take."""
        others = sum(math.prod(shape) for name, shape in self._shapes.items() if not is_matrix(name))
        return self._matrix_bytes() + others * self.dtype.itemsize

    def note(self) -> str:
        """What became of the weights, in words."""
        return (
            f"Weights: rounded to {self.bits} bits, the output projection to {HEAD_BITS}{self.packer.note()}."
        )

    def _matrix_bytes(self) -> int:
        heads = [
            shape for name, shape in self._shapes.items() if name.startswith(("lm_head.", "model.embed"))
        ]
        total = max((_tile_bytes(HEAD_BITS, shape) for shape in heads), default=0)
        return total + sum(
            _tile_bytes(self.bits, shape) for name, shape in self._shapes.items() if is_matrix(name)
        )

    def _part(self, weight: Tensor, bits: Bits) -> Nibbles | Tensor:
        return weight.to(self.dtype) if weight.shape[1] % GROUP else quantise(weight, bits)


def quantise(weight: Tensor, bits: Bits) -> Nibbles:
    """Round a matrix [N, K] of any floating dtype to the nearest; K is a multiple of 32."""
    return Nibbles.stacked(
        [_rounded(rows.float().unflatten(1, (-1, GROUP)), bits) for rows in weight.split(AT_ONCE)]
    )


def _rounded(groups: Tensor, bits: Bits) -> Nibbles:
    """The same of [N, groups, 32] float32; scales are those that are kept before anything is divided."""
    if bits == 4:
        least = _kept(groups.amin(dim=-1, keepdim=True))
        scale = _kept((groups.amax(dim=-1, keepdim=True) - least) / 15)
        q = ((groups - least) / scale.clamp(min=1e-12)).round_().clamp_(0, 15)
        scale, least = scale.squeeze(-1), least.squeeze(-1)
        return Nibbles(q.to(torch.uint8).flatten(1), scale, least + 8 * scale, 4)
    scale = _kept(groups.abs().amax(dim=-1, keepdim=True) / 127)
    whole = (groups / scale.clamp(min=1e-12)).round_().clamp_(-127, 127).add_(128).to(torch.uint8).flatten(1)
    scale = scale.squeeze(-1)
    both = torch.cat((16 * scale, scale), dim=1)
    zero = torch.cat((torch.zeros_like(scale), 8 * scale), dim=1)
    return Nibbles(torch.cat((whole >> 4, whole & 15), dim=1), both, zero, 8)


def _kept(scale: Tensor) -> Tensor:
    return scale.half().float()


def _tile_bytes(bits: int, shape: tuple[int, ...]) -> int:
    """Of a matrix, room for its place in memory included."""
    outputs, inputs = shape
    return -(-outputs // LANES) * tile_bytes(16 if inputs % GROUP else bits, inputs) + ALIGNMENT
