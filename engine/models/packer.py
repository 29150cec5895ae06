"""What becomes of quantised matrices on a CPU: tiles for the C decoder, or torch's packed kernel."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from engine.models.arena import Arena
from engine.models.packed import PACKED_ROWS, Nibbles, Packed, PackedWeight, Wide
from engine.models.tiled import TiledWeight
from engine.native.library import native_products


class Packer:
    """Lays matrices out for whichever code computes with them.

    Args:
        dtype: in which the engine computes.
        copies: keep copies in ``dtype`` for products of many rows, which torch's packed kernel is slow for.
        tiled: lay them out for the C decoder, which needs no copies.
        tiled_bytes: of all tiles together.
        untiled: why that is not done, for the note.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        copies: bool,
        *,
        tiled: bool = False,
        tiled_bytes: int = 0,
        untiled: str = "",
    ) -> None:
        self.dtype = dtype
        self.tiled = tiled
        self.wide = copies and not tiled
        self._untiled = untiled
        self._arena = Arena(tiled_bytes)

    def fuse(
        self, parts: Sequence[Nibbles | Tensor], weights: Sequence[Tensor]
    ) -> PackedWeight | TiledWeight | Tensor:
        """Matrices of one input; a tensor where none of them is quantised and torch computes.

        Args:
            parts: what is kept of each, [out, in].
            weights: the same as the module has them, which copies are made of.
        """
        if self.tiled:
            return TiledWeight.of(parts, self._arena)
        packed = _joined(parts)
        if len(packed) == 1 and isinstance(packed[0], Tensor):
            return packed[0]
        wide = Wide(torch.cat([weight.to(self.dtype) for weight in weights])) if self.wide else None
        bits = max(part.bits for part in packed if isinstance(part, Packed))
        return PackedWeight(packed, wide, PACKED_ROWS[bits])

    def head(self, part: Nibbles | Tensor, weight: Tensor) -> PackedWeight | TiledWeight | None:
        """The output projection, which stays a tensor beside it; None where that is all there is."""
        if self.tiled:
            return TiledWeight.of([part], self._arena)
        if not isinstance(part, Nibbles):
            return None
        wide = Wide(weight, shared=True) if self.wide else None
        return PackedWeight((Packed(part),), wide, PACKED_ROWS[part.bits])

    def note(self) -> str:
        """How products are computed, in words that follow what the weights are."""
        if self.tiled:
            return f"; computed in C with {native_products()}"
        number = str(self.dtype).removeprefix("torch.")
        copies = f"; many rows by copies in {number}" if self.wide else ""
        return f"{copies}; computed by torch{f', since {self._untiled}' if self._untiled else ''}"


def _joined(parts: Sequence[Nibbles | Tensor]) -> tuple[Packed | Tensor, ...]:
    """Neighbours of the same bits become one matrix."""
    joined: list[Packed | Tensor] = []
    for bits, group in groupby(parts, key=lambda part: part.bits if isinstance(part, Nibbles) else 0):
        members = list(group)
        if bits:
            joined.append(Packed(Nibbles.stacked([part for part in members if isinstance(part, Nibbles)])))
        else:  # a single one may be mapped, and stays so
            tensors = [part for part in members if isinstance(part, Tensor)]
            joined.append(tensors[0] if len(tensors) == 1 else torch.cat(tensors))
    return tuple(joined)
