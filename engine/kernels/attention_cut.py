"""How the attention kernel of a decode step is cut."""

from dataclasses import dataclass
from functools import cache as cached

PROGRAMS = 128  # of an attention launch where each needs a multiprocessor for itself
MOST_WORKERS = 64  # programs that share a context; a power of two
JOIN = 8  # pieces that one program joins, of more than twice as many
SHARED = 227 * 1024  # bytes of shared memory that a program can have on an H200


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How attention is cut: tiles of so many tokens, in pieces of a context of at least ``chunk`` tokens.

    ``stages`` tiles are on their way through shared memory or worked on; 0 keeps this and the next one in
    registers. ``early`` tokens of a piece are read before the projections are there; without stages that is
    a tile.
    """

    tile: int
    warps: int
    stages: int
    chunk: int
    workers: int
    early: int = 0

    def counters(self, parts: int) -> int:
        """Numbers that a sequence and kv head counts its pieces with, for ``parts`` parts."""
        return max(parts, self.workers // JOIN + 1)


@cached
def attention_shape(rows: int, kv_heads: int, dim: int = 128, most_shared: int = SHARED) -> AttentionShape:
    """What did best on an H200 in whole steps, at contexts of 512 to 32,768 tokens.

    One row is all latency, so its tiles stay in registers. For more, few programs that have several tiles on
    their way read a long context at the speed of the memory; where they do not fit, twice as many with one.

    Args:
        rows: sequences.
        dim: of a head.
        most_shared: bytes of shared memory that a program can have.
    """
    pairs = rows * kv_heads
    if rows == 1:
        return AttentionShape(64, 4, 0, 64, _workers(2 * PROGRAMS, pairs))
    if kv_heads >= 8 and 64 <= pairs < 128:  # 7 % faster at 512 tokens, even at 1,024, slower from there on
        return AttentionShape(64, 4, 0, 64, _workers(2 * PROGRAMS, pairs))
    tile = 128 if dim <= 128 else 64
    in_flight = 2 * 2 * (tile * dim * 2)  # two of keys and of values, 16-bit
    roomy = in_flight + 8 * 1024 <= most_shared and (pairs <= 16 or 128 <= pairs < 256)
    stages, programs = (3, PROGRAMS) if roomy else (2, 2 * PROGRAMS)
    return AttentionShape(tile, 4, stages, tile, _workers(programs, pairs), early=tile)


def _workers(programs: int, pairs: int) -> int:
    return min(MOST_WORKERS, 1 << (max(1, programs // pairs).bit_length() - 1))
