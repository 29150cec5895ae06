"""How the matrix kernels of a decode step are cut: tuned on the card, from a table of measured shapes, or by
a rule for the others.
"""

from dataclasses import dataclass
from functools import cache as cached


@dataclass(frozen=True, slots=True)
class Tile:
    """A program's share of a product: ``outs`` outputs, read ``ins`` inputs at a time.

    Attributes:
        split: pieces of ``ins`` that warps work on apart (tensor cores only).
        stages: tiles in flight (tensor cores only).
        cuts: programs that share the inputs of an output (tensor cores only).
        early: the first tile is read before the input is there (tensor cores only; one row always does).
    """

    outs: int
    ins: int
    warps: int
    split: int = 1
    stages: int = 1
    cuts: int = 1
    early: bool = False

    def __str__(self) -> str:
        """In the order of the fields; what follows the warps where it says anything."""
        more = (self.split, self.stages, self.cuts)
        numbers = (self.warps, *(more if more != (1, 1, 1) else ()))
        return "/".join((f"{self.outs}×{self.ins}", *map(str, numbers), *["early"] * self.early))


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of ``rows`` rows: [rows, ins] by [outs, ins].

    ``kind`` is ``qkv``, ``out``, ``join`` (``out`` from unjoined attention), ``gate_up`` (of twice as many
    outputs), ``down`` or ``head``.
    """

    kind: str
    outs: int
    ins: int
    rows: int


MOST_TILES, PARTIAL_SUMS = 4096, 8 * 2**20  # of products whose inputs are cut
MOST_WARPS, MOST_NUMBERS = 32, 2**20  # of a program, and in one of its blocks
LEAST_OF_A_DOT = 16  # outputs and inputs of a tensor core product

Key = tuple[str, int, int, int]  # a shape whose rows are a class

# By kind, outputs, inputs and rows (1, and up to 8, 16 and 32): the fastest of those that were tried on an
# H200, for Qwen2.5-1.5B, Qwen2.5-7B and Qwen3-0.6B.
MEASURED: dict[Key, Tile] = {
    ("down", 1536, 8960, 1): Tile(2, 512, 2),
    ("down", 3584, 18944, 1): Tile(4, 2048, 8),
    ("down", 1024, 3072, 1): Tile(2, 2048, 2),
    ("down", 1536, 8960, 8): Tile(16, 256, 2, 2, 6, 4, True),
    ("down", 3584, 18944, 8): Tile(16, 1024, 4, 4, 3, early=True),
    ("down", 1024, 3072, 8): Tile(16, 1024, 4, 4, 3),
    ("down", 1536, 8960, 16): Tile(16, 1024, 4, 4, 3),
    ("down", 3584, 18944, 16): Tile(16, 256, 2, 2, 6),
    ("down", 1024, 3072, 16): Tile(16, 1024, 4, 4, 3),
    ("down", 1536, 8960, 32): Tile(16, 128, 1, 1, 6, 4),
    ("down", 3584, 18944, 32): Tile(32, 512, 4, 4, 3),
    ("down", 1024, 3072, 32): Tile(16, 256, 2, 2, 6, 2),
    ("qkv", 4096, 1024, 1): Tile(4, 512, 1),
    ("gate_up", 3072, 1024, 1): Tile(4, 512, 2),
    ("head", 151936, 1024, 1): Tile(4, 1024, 2),
    ("qkv", 4096, 1024, 8): Tile(16, 256, 2, 2, 6, early=True),
    ("gate_up", 3072, 1024, 8): Tile(16, 128, 1, 1, 6),
    ("head", 151936, 1024, 8): Tile(16, 256, 1, 1, 4),
    ("qkv", 4096, 1024, 16): Tile(16, 512, 2, 2, 4),
    ("gate_up", 3072, 1024, 16): Tile(16, 128, 1, 1, 6),
    ("head", 151936, 1024, 16): Tile(64, 128, 4, 1, 4),
    ("qkv", 4096, 1024, 32): Tile(64, 128, 4, 1, 4),
    ("gate_up", 3072, 1024, 32): Tile(64, 128, 4, 1, 4),
    ("head", 151936, 1024, 32): Tile(64, 128, 4, 1, 4),
    ("qkv", 2048, 1536, 1): Tile(4, 1024, 1),
    ("out", 1536, 1536, 1): Tile(4, 2048, 8),
    ("join", 1536, 1536, 1): Tile(8, 512, 4),
    ("gate_up", 8960, 1536, 1): Tile(2, 2048, 2),
    ("head", 151936, 1536, 1): Tile(4, 512, 2),
    ("qkv", 2048, 1536, 8): Tile(16, 256, 1, 1, 4),
    ("out", 1536, 1536, 8): Tile(16, 128, 2, 2, 8),
    ("gate_up", 8960, 1536, 8): Tile(16, 256, 2, 2, 4),
    ("head", 151936, 1536, 8): Tile(16, 256, 1, 1, 4),
    ("qkv", 2048, 1536, 16): Tile(16, 1024, 4, 4, 3),
    ("out", 1536, 1536, 16): Tile(16, 1024, 4, 4, 3),
    ("gate_up", 8960, 1536, 16): Tile(16, 128, 1, 1, 6),
    ("head", 151936, 1536, 16): Tile(64, 128, 4, 1, 4),
    ("qkv", 2048, 1536, 32): Tile(16, 256, 2, 2, 6),
    ("out", 1536, 1536, 32): Tile(16, 256, 2, 2, 6),
    ("gate_up", 8960, 1536, 32): Tile(128, 64, 8, 1, 4),
    ("head", 151936, 1536, 32): Tile(64, 128, 4, 1, 4),
    ("out", 1024, 2048, 1): Tile(4, 2048, 8),
    ("join", 1024, 2048, 1): Tile(4, 2048, 8),
    ("out", 1024, 2048, 8): Tile(16, 256, 2, 2, 6),
    ("out", 1024, 2048, 16): Tile(16, 1024, 4, 4, 3),
    ("out", 1024, 2048, 32): Tile(16, 512, 2, 2, 4),
    ("qkv", 4608, 3584, 1): Tile(4, 512, 2),
    ("out", 3584, 3584, 1): Tile(4, 512, 2),
    ("join", 3584, 3584, 1): Tile(2, 512, 1),
    ("gate_up", 18944, 3584, 1): Tile(2, 1024, 2),
    ("head", 152064, 3584, 1): Tile(4, 512, 2),
    ("qkv", 4608, 3584, 8): Tile(16, 256, 2, 2, 6, early=True),
    ("out", 3584, 3584, 8): Tile(16, 256, 2, 2, 6),
    ("gate_up", 18944, 3584, 8): Tile(16, 256, 1, 1, 4),
    ("head", 152064, 3584, 8): Tile(16, 256, 1, 1, 4),
    ("qkv", 4608, 3584, 16): Tile(16, 128, 1, 1, 6, 2),
    ("out", 3584, 3584, 16): Tile(16, 256, 2, 2, 6),
    ("gate_up", 18944, 3584, 16): Tile(16, 128, 1, 1, 6),
    ("head", 152064, 3584, 16): Tile(64, 128, 4, 1, 4),
    ("qkv", 4608, 3584, 32): Tile(64, 128, 4, 1, 4, early=True),
    ("out", 3584, 3584, 32): Tile(64, 128, 4, 1, 4, 2),
    ("gate_up", 18944, 3584, 32): Tile(64, 128, 4, 1, 4),
    ("head", 152064, 3584, 32): Tile(64, 128, 4, 1, 4),
}
ROW_CLASSES = (1, 8, 16, 32)


def row_class(rows: int) -> int:
    """The class of ``MEASURED`` that so many rows belong to."""
    return next((size for size in ROW_CLASSES if size >= rows), ROW_CLASSES[-1])


def key_of(shape: Shape) -> Key:
    """Under which a shape's tile is listed."""
    return (shape.kind, shape.outs, shape.ins, row_class(shape.rows))


@cached
def tile_for(shape: Shape, card: str = "") -> Tile:
    """The tile that was tuned on a card, else a measured one, else a sound one.

    Args:
        card: as ``tile_cache.card_name`` says it; nothing was tuned for no card.
    """
    from engine.kernels.tile_cache import tuned  # what it holds are tiles

    key = key_of(shape)
    found = tuned(card).get(key) if card else None
    return found or MEASURED.get(key) or _fitting(_usual(shape, key[-1]), shape.ins)


def fits(tile: Tile, shape: Shape) -> bool:
    """Whether the kernels compute a product rightly that is cut so, and no program has nothing to do."""
    powers = (tile.outs, tile.ins, tile.warps, tile.split)
    if any(number < 1 or number & (number - 1) for number in powers) or min(tile.stages, tile.cuts) < 1:
        return False
    if tile.warps > MOST_WARPS or tile.outs * tile.ins > MOST_NUMBERS:
        return False
    if tile.cuts * tile.ins >= 2 * shape.ins and tile.cuts * tile.ins > 64:
        return False
    if shape.rows == 1:
        return True
    if tile.split > tile.warps or min(tile.outs, tile.ins // tile.split) < LEAST_OF_A_DOT:
        return False
    if tile.cuts == 1:
        return True
    programs = -(-shape.outs // tile.outs)
    sums = programs * tile.cuts * tile.outs * padded(shape.rows)
    return shape.kind != "gate_up" and programs <= MOST_TILES and sums <= PARTIAL_SUMS


def shared_bytes(tile: Tile, shape: Shape) -> int:
    """What the tiles in flight take of a program's shared memory at the least, two bytes a number."""
    if shape.rows == 1:
        return 0
    weights = tile.outs * (2 if shape.kind == "gate_up" else 1)
    return 2 * (tile.stages - 1) * tile.ins * (weights + padded(shape.rows))


def padded(rows: int) -> int:
    """Rows of a tensor core product: a power of two, 8 at least."""
    return max(8, 1 << (rows - 1).bit_length())


def _usual(shape: Shape, rows: int) -> Tile:
    """What did well over the measured shapes."""
    narrow = shape.outs < 4096
    if rows == 1:
        return Tile(4, 512, 1 if shape.kind == "gate_up" else 2)
    if shape.kind == "head" and rows > 8:
        return Tile(64, 128, 4, 1, 4)
    if shape.kind == "gate_up":
        return {8: Tile(16, 256, 2, 2, 4), 16: Tile(16, 128, 1, 1, 6), 32: Tile(64, 128, 4, 1, 4)}[rows]
    if narrow:
        return Tile(16, 256, 2, 2, 6, 4 if shape.ins > 4096 and rows == 8 else 1)
    return Tile(64, 128, 4, 1, 4) if rows == 32 else Tile(16, 256, 2, 2, 6)


def _fitting(tile: Tile, ins: int) -> Tile:
    """No tile is wider than its input, padded to a power of two."""
    wide = tile.ins
    while wide >= 2 * ins and wide > 64:
        wide //= 2
    return Tile(tile.outs, wide, tile.warps, tile.split, tile.stages, tile.cuts)
