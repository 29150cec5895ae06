"""Tiles that are worth trying for a product of a decode step; which is fastest depends on card and shape."""

from typing import Any

from engine.kernels.tiles import Shape, Tile, fits, row_class, shared_bytes

# Outputs, inputs and warps; beyond one row also split, stages and cuts.
Cut = tuple[Any, ...]

ONE_ROW: dict[str, tuple[Cut, ...]] = {
    "qkv": ((4, 512, 1), (4, 1024, 1), (8, 512, 1), (4, 512, 2), (2, 512, 1), (2, 1024, 2)),
    "out": ((4, 512, 2), (4, 2048, 8), (2, 1024, 2), (4, 1024, 2), (8, 512, 2), (2, 512, 1)),
    "join": ((8, 512, 4), (4, 1024, 2), (4, 2048, 8), (4, 512, 4), (8, 256, 2), (2, 512, 1)),
    "gate_up": (
        (2, 512, 2),
        (2, 2048, 2),
        (4, 512, 1),
        (4, 512, 2),
        (2, 1024, 2),
        (1, 1024, 1),
        (2, 512, 1),
    ),
    "down": (
        (2, 512, 2),
        (2, 2048, 2),
        (1, 2048, 2),
        (4, 512, 1),
        (4, 2048, 8),
        (8, 512, 2),
        (2, 1024, 2),
    ),
    "head": ((4, 512, 2), (8, 512, 4), (4, 1024, 2), (8, 512, 1)),
}
EIGHT_ROWS: dict[str, tuple[Cut, ...]] = {
    "qkv": (
        (16, 256, 1, 1, 4),
        (16, 256, 2, 2, 6),
        (16, 512, 2, 2, 4),
        (16, 128, 1, 1, 6),
        (16, 128, 1, 1, 6, 2),
        (16, 1024, 4, 4, 3),
    ),
    "out": (
        (16, 128, 2, 2, 8),
        (16, 256, 2, 2, 6),
        (16, 1024, 4, 4, 3),
        (16, 128, 1, 1, 6, 4),
        (16, 512, 4, 4, 4),
        (16, 256, 2, 2, 4, 2),
    ),
    "gate_up": (
        (16, 256, 2, 2, 4),
        (16, 256, 1, 1, 4),
        (16, 128, 1, 1, 6),
        (16, 128, 2, 2, 8),
        (16, 512, 4, 4, 3),
    ),
    "down": (
        (16, 256, 2, 2, 6, 4),
        (16, 256, 1, 1, 4, 8),
        (16, 512, 2, 2, 4, 2),
        (16, 1024, 4, 4, 3),
        (16, 512, 4, 4, 4, 2),
        (16, 256, 2, 2, 6, 2),
        (16, 256, 2, 2, 6),
    ),
    "head": ((16, 512, 2, 2, 4), (16, 256, 1, 1, 4), (32, 512, 4, 4, 3)),
}
MANY_ROWS: dict[str, tuple[Cut, ...]] = {
    "qkv": (
        (16, 256, 2, 2, 6),
        (64, 128, 4, 1, 4),
        (32, 128, 4, 1, 4),
        (16, 512, 4, 4, 4),
        (16, 1024, 4, 4, 3),
    ),
    "out": (
        (16, 256, 2, 2, 6),
        (64, 128, 4, 1, 4, 2),
        (16, 512, 2, 2, 4),
        (16, 512, 4, 4, 4),
        (16, 1024, 4, 4, 3),
    ),
    "gate_up": (
        (64, 128, 4, 1, 4),
        (32, 128, 4, 1, 4),
        (64, 64, 4, 1, 6),
        (16, 128, 1, 1, 6),
        (128, 64, 8, 1, 4),
    ),
    "down": (
        (16, 128, 1, 1, 6, 4),
        (32, 512, 4, 4, 3),
        (16, 256, 2, 2, 6, 2),
        (64, 128, 4, 1, 4, 4),
        (16, 512, 4, 4, 4),
        (64, 64, 4, 1, 6, 8),
    ),
    "head": ((64, 128, 4, 1, 4), (64, 64, 4, 1, 6)),
}


def candidates(shape: Shape, most_shared: int | None = None) -> tuple[Tile, ...]:
    """What to try for a shape: tiles that the kernels take and that a program has the room for.

    Args:
        most_shared: bytes of shared memory that a program can have; None where nobody knows.
    """
    rows = row_class(shape.rows)
    # Between few and many rows either kind of tile wins.
    lists = {1: (ONE_ROW,), 8: (EIGHT_ROWS,), 16: (EIGHT_ROWS, MANY_ROWS), 32: (MANY_ROWS,)}[rows]
    tiles = dict.fromkeys(Tile(*cut) for table in lists for cut in table.get(shape.kind, ()))
    return tuple(
        tile
        for tile in tiles
        if fits(tile, shape) and (most_shared is None or shared_bytes(tile, shape) <= most_shared)
    )
