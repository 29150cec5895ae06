"""What every row of a static decode batch computes next, decided on the device.

A row is one column of numbers, ``DecodeBuffers`` holds all of them in one int64 tensor. The host fills a row
anew where something changed (its mark is FRESH); any other row goes on by itself: it takes the token that it
drew last, at the next position. Torch below, one Triton kernel on CUDA with the same results.
"""

from torch import Tensor

# Rows of the int64 tensor [COLUMNS, rows]. Some are of another kind in the first of their bytes: LENGTHS
# int32, TEMPERATURE and MIN_P float32, GREEDY bool; TOP_P is float64. SOURCE is a row of the step before, or
# -1 where IDS holds the token. ADDED is the block that a row which goes on takes for its next token, 0 (the
# null block) where none.
IDS, POSITIONS, SLOTS, CONTEXTS, LENGTHS, FRESH, SOURCE, ADDED = range(8)
GREEDY, TOP_K, SEED, TEMPERATURE, TOP_P, MIN_P = range(8, 14)
COLUMNS = 14
NO_SLOT = -1
NO_SOURCE = -1


def advance(
    columns: Tensor, lengths: Tensor, tables: Tensor, tokens: Tensor, size: int, block_size: int
) -> None:
    """Bring the first ``size`` rows to their next token, in place; reads nothing back to the host.

    Fresh rows take IDS, or the token that row SOURCE drew in the step before, and lose their mark. Others
    take the token that they drew themselves, and move on by one position, into the block ADDED where there
    is one, which enters their table. Rows without a slot are padding and stay. A token that is none (below
    0) becomes 0, since it is an index.

    Args:
        columns: int64 [COLUMNS, rows], contiguous.
        lengths: int32 [>= size], the LENGTHS of the rows.
        tables: int32 [rows, width], contiguous; written to where a block was added.
        tokens: int64 [rows], drawn in the step before.
    """
    if columns.is_cuda:
        from engine.kernels.advance import advance as launch

        launch(columns, lengths, tables, tokens, size, block_size)
        return
    ids, positions, slots, contexts = (columns[row, :size] for row in (IDS, POSITIONS, SLOTS, CONTEXTS))
    fresh, source, added = columns[FRESH, :size], columns[SOURCE, :size], columns[ADDED, :size]
    real, is_fresh = slots >= 0, fresh != 0
    moves = real & ~is_fresh
    drawn = tokens.gather(0, source.clamp(min=0)).where(is_fresh, tokens[:size]).clamp(min=0)
    ids.copy_(drawn.where(moves | (is_fresh & (source >= 0)), ids))
    positions += moves
    contexts += moves
    lengths[:size].add_(moves)
    place = (positions // block_size)[:, None]
    block = tables[:size].gather(1, place)[:, 0]
    block = added.to(block.dtype).where(moves & (added > 0), block)
    tables[:size].scatter_(1, place, block[:, None])
    slots.copy_((block * block_size + positions % block_size).where(moves, slots))
    fresh.zero_()
    added.zero_()
