"""The next token, position and slot of every row of a decode batch, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from engine.advance import ADDED, CONTEXTS, FRESH, IDS, POSITIONS, SLOTS, SOURCE

MOST_ROWS = 128  # of one program


@triton.jit
def _advance(  # type: ignore[no-untyped-def]
    columns,
    lengths,
    tables,
    tokens,
    rows,
    width,
    size,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    IDS: tl.constexpr,
    POSITIONS: tl.constexpr,
    SLOTS: tl.constexpr,
    CONTEXTS: tl.constexpr,
    FRESH: tl.constexpr,
    SOURCE: tl.constexpr,
    ADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < size
    own = columns + row
    mark = tl.load(own + FRESH * rows, mask=inside, other=1)
    source = tl.load(own + SOURCE * rows, mask=inside, other=-1)
    slot = tl.load(own + SLOTS * rows, mask=inside, other=-1)
    position = tl.load(own + POSITIONS * rows, mask=inside, other=0)
    moves = inside & (slot >= 0) & (mark == 0)
    takes = moves | (inside & (source >= 0) & (mark != 0))
    source = tl.where(mark != 0, source, row)
    token = tl.load(tokens + source, mask=takes, other=0)
    tl.store(own + IDS * rows, tl.maximum(token, 0), mask=takes)
    position += 1
    place = tables + row * width + position // BLOCK_SIZE
    added = tl.load(own + ADDED * rows, mask=moves, other=0)
    grows = moves & (added > 0)
    tl.store(place, added.to(tl.int32), mask=grows)
    held = tl.load(place, mask=moves & (added <= 0), other=0).to(tl.int64)
    block = tl.where(grows, added, held)
    tl.store(own + POSITIONS * rows, position, mask=moves)
    tl.store(own + SLOTS * rows, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=moves)
    context = tl.load(own + CONTEXTS * rows, mask=moves, other=0)
    tl.store(own + CONTEXTS * rows, context + 1, mask=moves)
    length = tl.load(lengths + row, mask=moves, other=0)
    tl.store(lengths + row, length + 1, mask=moves)
    tl.store(own + FRESH * rows, tl.zeros_like(row), mask=inside)
    tl.store(own + ADDED * rows, tl.zeros_like(row), mask=inside)


def advance(
    columns: Tensor, lengths: Tensor, tables: Tensor, tokens: Tensor, size: int, block_size: int
) -> None:
    """See ``engine.advance.advance``."""
    rows = min(MOST_ROWS, triton.next_power_of_2(size))
    _advance[(triton.cdiv(size, rows),)](
        columns,
        lengths,
        tables,
        tokens,
        columns.stride(0),
        tables.stride(0),
        size,
        BLOCK_SIZE=block_size,
        ROWS=rows,
        IDS=IDS,
        POSITIONS=POSITIONS,
        SLOTS=SLOTS,
        CONTEXTS=CONTEXTS,
        FRESH=FRESH,
        SOURCE=SOURCE,
        ADDED=ADDED,
        num_warps=1,
    )
