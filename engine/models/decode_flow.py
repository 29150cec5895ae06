"""Memory of a decode step of few rows: what goes from kernel to kernel, and what stays within a launch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from engine.kernels.attention_cut import AttentionShape
from engine.kernels.tiles import MOST_TILES, PARTIAL_SUMS, padded

if TYPE_CHECKING:
    from engine.models.decoder import FusedDecoder, Geometry


class Scratch:
    """What is left between programs of one launch. Counters are zero at each start, so they are not from a
    graph's own memory.
    """

    def __init__(self, geometry: "Geometry", cuts: Sequence[AttentionShape], parts: int) -> None:
        """``cuts`` of the attention of 1, 2, … rows; ``parts`` are the most that it is left in."""
        device, group = geometry.inv_freq.device, geometry.heads // geometry.kv_heads
        most = [((row + 1) * geometry.kv_heads, shape) for row, shape in enumerate(cuts)]
        pieces = max(pairs * shape.workers for pairs, shape in most) * group
        wide: dict[str, Any] = {"dtype": torch.float32, "device": device}
        self.pieces = torch.empty(pieces * geometry.head_dim, **wide)
        self.peaks = torch.empty(pieces, **wide)
        self.sums = torch.empty(pieces, **wide)
        counters = max(pairs * shape.counters(parts) for pairs, shape in most)
        self.pieces_done = torch.zeros(counters, dtype=torch.int32, device=device)
        self.partial = torch.empty(PARTIAL_SUMS, **wide)
        self.tiles_done = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


class Flow:
    """What goes from kernel to kernel in one step.

    ``gained`` and ``squares`` are what puts a norm off, see ``engine.kernels.matrows``; ``squares`` come in
    ``parts``. Attention of one row may come in parts too, joined by the output projection.
    """

    def __init__(self, rows: int, decoder: "FusedDecoder", parts: int) -> None:
        like, geometry, layer = decoder.embedding, decoder.geometry, decoder.layers[0]
        hidden, width = like.shape[1], geometry.heads * geometry.head_dim
        several, unjoined = int(rows > 1), parts if parts > 1 else 0
        self.rows = rows
        self.padded = padded(rows)
        self.parts = 1
        self.x = like.new_empty(rows, hidden)
        self.gained = like.new_empty(rows * several, hidden)
        self.qkv = like.new_empty(rows, layer.qkv.shape[0])
        self.attended = like.new_empty(rows, width)
        self.inner = like.new_empty(rows, layer.gate_up.shape[0] // 2)
        wide: dict[str, Any] = {"dtype": torch.float32, "device": like.device}
        self.squares = torch.empty(hidden * self.padded * several, **wide)  # at most a part an output
        self.spare = torch.empty_like(self.squares)
        self.parts_of = torch.empty(unjoined * width, **wide)
        self.peaks = torch.empty(unjoined * geometry.heads, **wide)
        self.sums = torch.empty(unjoined * geometry.heads, **wide)
