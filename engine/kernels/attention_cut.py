"""How the attention kernel of a decode step is cut."""

from dataclasses import dataclass
from functools import cache as cached

PROGRAMS = 128  # of an attention launch where each needs a multiprocessor for itself
MOST_WORKERS = 128  # programs that share a context; a power of two
JOIN = 8  # pieces that one program joins, of more than twice as many
SHARED = 227 * 1024  # bytes of shared memory that a program can have on an H200


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How attention is cut: tiles of so many tokens, in pieces of a context of at least ``chunk`` tokens.

    ``stages`` tiles are on their way through shared memory or worked on; 0 keeps this and the next one in
    registers. ``early`` tokens of a piece are read before the projections are there; without stages that is
    a tile. Longer pieces are multiples of ``grain``, by default as many as ``early``.
    """

    tile: int
    warps: int
    stages: int
    chunk: int
    workers: int
    early: int = 0
    grain: int = 0

    def counters(self, parts: int) -> int:
        """Numbers that a sequence and kv head counts its pieces with, for ``parts`` parts."""
        return max(parts, self.workers // JOIN + 1)

    def together(self, parts: int) -> int:
        """Most pieces that one program joins at once; a power of two."""
        most = self.workers // parts if parts > 1 else min(self.workers, 2 * JOIN)
        return 1 << (max(1, most) - 1).bit_length()


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
    if kv_heads >= 8 and 64 <= pairs < 128:  # 6 % faster at 512 tokens, 2 % at 1,024, slower from 2,048 on
        return AttentionShape(64, 4, 0, 64, _workers(2 * PROGRAMS, pairs), grain=16)
    tile = 128 if dim <= 128 else 64
    in_flight = 2 * 2 * (tile * dim * 2)  # two of keys and of values, 16-bit
    roomy = pairs <= 16 and in_flight + 8 * 1024 <= most_shared
    stages, programs = (3, PROGRAMS) if roomy else (2, 2 * PROGRAMS)
    return AttentionShape(tile, 4, stages, tile, _workers(programs, pairs), early=tile)


def _workers(programs: int, pairs: int) -> int:
    return min(MOST_WORKERS, 1 << (max(1, programs // pairs).bit_length() - 1))
