"""How the attention kernel of a decode step is cut."""

from dataclasses import dataclass
from functools import cache as cached

MOST_WORKERS = 64  # programs that share a context; a power of two
MOST_PROGRAMS = 1024  # of an attention launch; those that short contexts leave idle end at once
CUT_FOR = 512  # tokens of context that a full card is cut for


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How attention is cut: tiles of so many tokens, in pieces of a context of at least ``chunk`` tokens.

    ``stages`` tiles are in flight through shared memory; 0 keeps this and the next one in registers.
    ``early``: the first tile is read before the projections are there; without stages it always is.
    """

    tile: int
    warps: int
    stages: int
    chunk: int
    workers: int
    early: bool = False


@cached
def attention_shape(pairs: int) -> AttentionShape:
    """What did best on an H200 for so many sequences times kv heads, at contexts of about ``CUT_FOR``.

    Few programs keep their tiles in registers, many go through shared memory; longer contexts are shared by
    more programs.
    """
    programs = MOST_PROGRAMS
    if pairs < 16:
        tile, warps, stages, chunk = 64, 4, 0, 64
    elif pairs < 32:
        tile, warps, stages, chunk = 128, 8, 0, 128
    elif pairs < 128:
        tile, warps, stages, chunk = 64, 4, 0, CUT_FOR * pairs // 256
    elif pairs < 256:
        tile, warps, stages, chunk, programs = 32, 4, 4, 128, MOST_PROGRAMS // 2
    else:
        tile, warps, stages, chunk = 128, 4, 2, CUT_FOR
    workers = min(MOST_WORKERS, 1 << (max(1, programs // pairs).bit_length() - 1))
    return AttentionShape(tile, warps, stages, -(-chunk // tile) * tile, workers, early=stages > 0)
