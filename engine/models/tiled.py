"""Weights on a CPU in the order in which the C decoder reads them: tiles of 16 outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.arena import Arena
from engine.models.packed import GROUP, Nibbles

LANES = 16  # outputs of a tile
AT_ONCE = 1024  # outputs laid out at a time: what stands in memory meanwhile is small


@dataclass(frozen=True, slots=True)
class Tiled:
    """A matrix of 4-bit, 8-bit or bfloat16 numbers.

    Attributes:
        data: [tiles, bytes] uint8, see ``engine/native/matrix.h``.
        kind: bits of a number: 4, 8 or 16.
        outputs, inputs: of the matrix; outputs that fill up the last tile do not count.
    """

    data: Tensor
    kind: int
    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        """Memory."""
        return self.data.nbytes

    @staticmethod
    def of(weight: Nibbles | Tensor, arena: Arena) -> "Tiled":
        """Lay a matrix [outputs, inputs] out in ``arena``; a tensor becomes bfloat16.

        Raises:
            ValueError: the inputs are no multiple of 32.
        """
        if isinstance(weight, Nibbles):
            outputs, width = weight.q.shape
            inputs = width * 4 // weight.bits
            kind = weight.bits
        else:
            outputs, inputs = weight.shape
            kind = 16
        if inputs % GROUP:
            raise ValueError(f"{inputs} inputs are no multiple of {GROUP}")
        tiles = -(-outputs // LANES)
        data = arena.take(tiles * tile_bytes(kind, inputs)).view(tiles, -1)
        for begin in range(0, outputs, AT_ONCE):
            part = _laid_out(weight, begin, min(begin + AT_ONCE, outputs))
            data[begin // LANES :][: len(part)] = part
        return Tiled(data, kind, outputs, inputs)

    def values(self) -> Tensor:
        """[outputs, inputs] float32: what the numbers stand for."""
        tiles, groups = self.data.shape[0], self.inputs // GROUP
        if self.kind == 16:
            pairs = self.data.view(torch.bfloat16).view(tiles, -1, LANES, 2)
            return pairs.transpose(1, 2).reshape(tiles * LANES, self.inputs)[: self.outputs].float()
        size = GROUP * LANES * self.kind // 8
        tile = self.data.view(tiles, groups, -1)
        numbers, rest = tile[..., :size], tile[..., size:].contiguous().view(torch.float16).float()
        numbers = numbers.reshape(tiles, groups, -1, LANES, 4).permute(0, 3, 1, 2, 4).flatten(3)
        if self.kind == 4:
            numbers = torch.cat((numbers & 15, numbers >> 4), dim=-1)
        scale = rest[..., :LANES].transpose(1, 2).unsqueeze(-1)
        least = rest[..., LANES:].transpose(1, 2).unsqueeze(-1) if self.kind == 4 else -128 * scale
        return (numbers.float() * scale + least).reshape(tiles * LANES, self.inputs)[: self.outputs]


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """Matrices of one input, in the place of a fused weight; each is by itself."""

    parts: tuple[Tiled, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs of all, and inputs."""
        return sum(part.outputs for part in self.parts), self.parts[0].inputs

    @property
    def nbytes(self) -> int:
        """Memory of all."""
        return sum(part.nbytes for part in self.parts)

    @staticmethod
    def of(weights: Sequence[Nibbles | Tensor], arena: Arena) -> "TiledWeight":
        """See ``Tiled.of``."""
        return TiledWeight(tuple(Tiled.of(weight, arena) for weight in weights))


def tile_bytes(kind: int, inputs: int) -> int:
    """Bytes of a tile: numbers, and for each group and output a scale, with 4 bits a least value as well."""
    scales = {4: 2, 8: 1, 16: 0}[kind] * 2 * (inputs // GROUP)
    return LANES * (inputs * kind // 8 + scales)


def _laid_out(weight: Nibbles | Tensor, begin: int, end: int) -> Tensor:
    """[tiles, bytes] of some outputs, filled up with zeros."""
    missing = (begin - end) % LANES

    def rows(tensor: Tensor) -> Tensor:
        part = tensor[begin:end]
        return (F.pad(part, (0, 0, 0, missing)) if missing else part).unflatten(0, (-1, LANES))

    if isinstance(weight, Tensor):
        pairs = rows(weight.bfloat16()).unflatten(2, (-1, 2)).transpose(1, 2)
        return pairs.contiguous().view(torch.uint8).flatten(1)
    q, scale, zero = rows(weight.q), rows(weight.scale), rows(weight.zero)
    if weight.bits == 4:
        low, high = q.unflatten(2, (-1, 2, GROUP // 2)).unbind(3)
        numbers = low | (high << 4)
        scales = torch.cat((scale, zero - 8 * scale), dim=1)  # [tiles, 2 * 16, groups]
    else:  # ``16 (high - 8) + low - 8 + 8`` from -128, kept as bytes from 0
        high, low = q.chunk(2, dim=2)
        numbers = ((high << 4) | low).unflatten(2, (-1, GROUP))
        scales = scale[..., scale.shape[-1] // 2 :]
    fours = numbers.unflatten(3, (-1, 4)).permute(0, 2, 3, 1, 4)  # [tiles, groups, fours, 16, 4]
    halves = scales.half().transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat((fours.flatten(2), halves), dim=2).flatten(1)
