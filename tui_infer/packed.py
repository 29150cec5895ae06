"""A block mirror at rest: the checkpoints of the past are many, so they take little memory."""

import zlib
from array import array
from collections import Counter
from dataclasses import dataclass

from tui_infer.mirror import BlockMirror


@dataclass(frozen=True, slots=True)
class PackedMirror:
    """The whole state of a mirror; ``packed`` holds its flat arrays and block tables, compressed."""

    num_blocks: int
    block_size: int
    step: int
    version: int
    high_water: int
    used: int
    cached: int
    packed: bytes
    tables: tuple[tuple[int, int], ...]
    sharers: dict[int, dict[int, int]]
    hits: dict[int, "array[int]"]
    contexts: dict[int, int]
    cached_of: dict[int, int]

    @classmethod
    def of(cls, mirror: BlockMirror) -> "PackedMirror":
        """Two milliseconds at 4,096 blocks, some twenty at 100,000."""
        flat = (mirror.states, mirror._published, mirror.owner, mirror._index, mirror.change_step)
        parts = [bytes(part) for part in flat]
        for table in mirror._tables.values():
            parts += [bytes(array("i", table)), bytes(array("i", table.values()))]
        return cls(
            num_blocks=mirror.num_blocks,
            block_size=mirror.block_size,
            step=mirror.step,
            version=mirror.version,
            high_water=mirror.high_water,
            used=mirror._used,
            cached=mirror._cached,
            packed=zlib.compress(b"".join(parts), 1),
            tables=tuple((request, len(table)) for request, table in mirror._tables.items()),
            sharers={block: dict(holders) for block, holders in mirror._sharers.items()},
            hits={request: array("i", hits) for request, hits in mirror._hits.items()},
            contexts=dict(mirror._contexts),
            cached_of=dict(mirror._cached_of),
        )

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
        pairs = len(self.contexts) + len(self.cached_of) + len(self.tables)
        shared = sum(300 + 64 * len(holders) for holders in self.sharers.values())
        hits = sum(160 + 4 * len(numbers) for numbers in self.hits.values())
        return len(self.packed) + 100 * pairs + shared + hits + 1000

    def unpack(self) -> BlockMirror:
        """A mirror in this state."""
        mirror = BlockMirror(0, self.block_size)
        mirror.num_blocks, mirror.step, mirror.version = self.num_blocks, self.step, self.version
        mirror.high_water, mirror._used, mirror._cached = self.high_water, self.used, self.cached
        raw = memoryview(zlib.decompress(self.packed))
        at = 0

        def take(code: str, count: int) -> "array[int]":
            nonlocal at
            numbers: array[int] = array(code)
            end = at + count * numbers.itemsize
            numbers.frombytes(raw[at:end])
            at = end
            return numbers

        mirror.states = bytearray(take("B", self.num_blocks))
        mirror._published = bytearray(take("B", self.num_blocks))
        mirror.owner = take("q", self.num_blocks)
        mirror._index = take("i", self.num_blocks)
        mirror.change_step = take("q", self.num_blocks)
        for request, count in self.tables:
            mirror._tables[request] = dict(zip(take("i", count), take("i", count)))
        mirror._sharers = {block: dict(holders) for block, holders in self.sharers.items()}
        mirror._hits = {request: set(hits) for request, hits in self.hits.items()}
        mirror._contexts, mirror._cached_of = dict(self.contexts), Counter(self.cached_of)
        return mirror
