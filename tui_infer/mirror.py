"""The engine's block pool, rebuilt beside it from the changes it reports."""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from engine.records import BlockChange, BlockCounts, BlockSnapshot, StepRecord

NOBODY = -1
NO_INDEX = -1
LOG_LIMIT = 65_536


class BlockState(IntEnum):
    """What a block is right now. Null is block 0, the target of padded rows."""

    FREE = 0
    CACHED = 1
    USED = 2
    NULL = 3


class BlockMirror:
    """State of every block after the last applied step; counts equal that step's ``BlockCounts``.

    States and owners live in flat arrays, so that a map of 100,000 blocks reads slices of them.
    ``version`` grows with every change; ``changed_since`` tells which blocks to draw again.
    Telemetry may be dropped, so nothing here raises on a change that does not fit: the next
    ``BlockSnapshot`` puts it right, and ``in_step_with`` says whether it has to.
    """

    def __init__(self, num_blocks: int = 0, block_size: int = 1) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.step = -1
        self.version = 0
        self.high_water = 0
        self.states = bytearray(num_blocks)
        self.owner = array("q", [NOBODY]) * num_blocks
        self._index = array("i", [NO_INDEX]) * num_blocks  # of the owner's table, while it holds the block
        self.change_step = array("q", [-1]) * num_blocks
        if num_blocks:
            self.states[0] = BlockState.NULL
        self._sharers: dict[int, dict[int, int]] = {}  # holders of blocks that have two or more
        self._tables: dict[int, dict[int, int]] = {}
        self._hits: dict[int, set[int]] = {}
        self._contexts: dict[int, int] = {}
        self._published = bytearray(num_blocks)
        self._cached_of: Counter[int] = Counter()
        self._used = self._cached = 0
        self._log: list[int] = []

    # --- what the engine says ------------------------------------------------------------------

    def apply(self, record: StepRecord) -> None:
        """Take over one step's changes; steps the mirror already contains are ignored."""
        if record.index <= self.step:
            return
        self.step = record.index
        for change in record.block_changes:
            self._apply_change(change)
        for row in record.rows:
            table = self._tables.get(row.request)
            if table is None:
                continue
            self._contexts[row.request] = row.context
            tail = table.get((row.context - 1) // self.block_size)
            if tail is not None:
                self._touch(tail, changed=False)

    def restore(self, snapshot: BlockSnapshot) -> None:
        """Take over the whole pool; only blocks that differ count as changed."""
        fresh: dict[int, dict[int, int]] = {}
        for owner in snapshot.owners:
            fresh.setdefault(owner.block, {})[owner.request] = owner.index
        published = set(snapshot.published)
        self.step = snapshot.step
        stale = {
            block for block in range(self.num_blocks) if self._published[block] or self._index[block] >= 0
        }
        for block in stale | set(fresh) | published:
            if not 0 < block < self.num_blocks:
                continue
            wanted, has = fresh.get(block, {}), dict(self.references(block))
            for request, index in has.items():
                if wanted.get(request) != index:
                    self._drop(block, request)
            for request, index in wanted.items():
                self._hold(block, request, index)
            if bool(self._published[block]) != (block in published):
                self._published[block] = block in published
                self._touch(block)
            self._settle(block)
        for request in [request for request in self._contexts if request not in self._tables]:
            del self._contexts[request]

    def _apply_change(self, change: BlockChange) -> None:
        block = change.block
        if not 0 < block < self.num_blocks:
            return
        kind = change.kind
        if kind == "allocate" or kind == "copy":
            self._published[block] = 0
            self._hold(block, change.request, change.index)
        elif kind == "share":
            self._hold(block, change.request, change.index)
            self._hits.setdefault(change.request, set()).add(change.index)
        elif kind == "release":
            self._drop(block, change.request)
        elif kind == "publish":
            self._published[block] = 1
            self._touch(block)
        elif kind == "evict":
            self._published[block] = 0
            self._touch(block)
        self._settle(block)

    # --- bookkeeping ---------------------------------------------------------------------------

    def _hold(self, block: int, request: int, index: int) -> None:
        if index < 0:
            return
        holders = self._sharers.get(block)
        if holders is not None:
            if holders.get(request) == index:
                return
            holders[request] = index
            if request == self.owner[block]:
                self._index[block] = index
        elif self._index[block] < 0:
            self._set_owner(block, request)
            self._index[block] = index
        elif self.owner[block] == request:
            if self._index[block] == index:
                return
            self._index[block] = index
        else:
            self._sharers[block] = {self.owner[block]: self._index[block], request: index}
        self._tables.setdefault(request, {})[index] = block
        self._touch(block)

    def _drop(self, block: int, request: int) -> None:
        holders = self._sharers.get(block)
        if holders is not None:
            dropped = holders.pop(request, None)
            if dropped is None:
                return
            index = dropped
            first = next(iter(holders))
            self.owner[block], self._index[block] = first, holders[first]
            if len(holders) == 1:
                del self._sharers[block]
        elif self.owner[block] == request and self._index[block] >= 0:
            index, self._index[block] = self._index[block], NO_INDEX
        else:
            return
        table = self._tables[request]
        if table.get(index) == block:
            del table[index]
        if not table:
            del self._tables[request]
            self._contexts.pop(request, None)
            self._hits.pop(request, None)
        self._touch(block)

    def _settle(self, block: int) -> None:
        """Bring state and counts in line with holders and publication."""
        if self._index[block] >= 0:
            state = BlockState.USED
        elif self._published[block]:
            state = BlockState.CACHED
        else:
            state = BlockState.FREE
        before = self.states[block]
        if before == state:
            return
        self._used += (state == BlockState.USED) - (before == BlockState.USED)
        self._cached += (state == BlockState.CACHED) - (before == BlockState.CACHED)
        self.states[block] = state
        if state == BlockState.CACHED:
            self._cached_of[self.owner[block]] += 1
        elif before == BlockState.CACHED:
            self._uncache(self.owner[block])
        self.high_water = max(self.high_water, block)

    def _set_owner(self, block: int, request: int) -> None:
        if self.states[block] == BlockState.CACHED and self.owner[block] != request:
            self._uncache(self.owner[block])
            self._cached_of[request] += 1
        self.owner[block] = request

    def _uncache(self, request: int) -> None:
        self._cached_of[request] -= 1
        if self._cached_of[request] <= 0:
            del self._cached_of[request]

    def _touch(self, block: int, changed: bool = True) -> None:
        if changed:
            self.change_step[block] = self.step
        self.version += 1
        self._log.append(block)
        if len(self._log) > LOG_LIMIT:
            del self._log[: LOG_LIMIT // 2]

    # --- what readers ask ----------------------------------------------------------------------

    def counts(self) -> BlockCounts:
        """Used, cached and free blocks; the null block is none of them."""
        every = max(self.num_blocks - 1, 0)
        return BlockCounts(self._used, self._cached, every - self._used - self._cached)

    def in_step_with(self, record: StepRecord) -> bool:
        """True when the mirror is at this step and counts what the engine counted."""
        return self.step == record.index and self.counts() == record.blocks

    # --- copies --------------------------------------------------------------------------------

    def copy(self) -> "BlockMirror":
        """A mirror of its own in the same state; readers see it as another one and draw it whole."""
        other = BlockMirror(0, self.block_size)
        other.__dict__.update(self.__dict__)
        other.states, other._published = self.states[:], self._published[:]
        other.owner, other._index, other.change_step = self.owner[:], self._index[:], self.change_step[:]
        other._sharers = {block: dict(holders) for block, holders in self._sharers.items()}
        other._tables = {request: dict(table) for request, table in self._tables.items()}
        other._hits = {request: set(hits) for request, hits in self._hits.items()}
        other._contexts, other._cached_of = dict(self._contexts), Counter(self._cached_of)
        other._log = []
        return other

    def state(self, block: int) -> BlockState:
        return BlockState(self.states[block])

    def references(self, block: int) -> Mapping[int, int]:
        """``{request: logical index}`` of everyone who holds the block, oldest first."""
        holders = self._sharers.get(block)
        if holders is not None:
            return holders
        index = self._index[block] if 0 <= block < self.num_blocks else NO_INDEX
        return {self.owner[block]: index} if index >= 0 else {}

    def published(self, block: int) -> bool:
        """True when the block is in the prefix index."""
        return bool(self._published[block])

    def last_owner(self, block: int) -> int | None:
        """The request that holds the block first, or held it last; None where nobody ever did."""
        owner = self.owner[block]
        return None if owner == NOBODY else owner

    def last_change_step(self, block: int) -> int:
        """Step of the last change, -1 where there was none."""
        return self.change_step[block]

    @property
    def shared(self) -> int:
        """Blocks held by two requests or more."""
        return len(self._sharers)

    @property
    def requests(self) -> Iterable[int]:
        """Requests that hold blocks, in the order in which they came."""
        return self._tables.keys()

    def table(self, request: int) -> list[tuple[int, int]]:
        """``(logical index, physical block)`` pairs of a request, in order."""
        return sorted(self._tables.get(request, {}).items())

    def num_held(self, request: int) -> int:
        """Blocks in the request's table."""
        return len(self._tables.get(request, ()))

    def num_cached_of(self, request: int) -> int:
        """Cached blocks that this request held last."""
        return self._cached_of.get(request, 0)

    def cached_of(self, request: int, known: Sequence[int] = ()) -> list[int]:
        """These blocks, in order. ``known`` is what was found before: all are searched if that changed."""
        count = self.num_cached_of(request)
        if len(known) == count and all(self._is_cached_of(request, block) for block in known):
            return list(known)
        found: list[int] = []
        block = -1
        while len(found) < count:
            try:
                block = self.owner.index(request, block + 1)
            except ValueError:
                break
            if self._is_cached_of(request, block):
                found.append(block)
        return found

    def _is_cached_of(self, request: int, block: int) -> bool:
        return self.owner[block] == request and self.state(block) == BlockState.CACHED

    def came_from_cache(self, request: int, index: int) -> bool:
        """True when the logical block was a prefix hit or came with a fork."""
        return index in self._hits.get(request, ())

    def context(self, request: int) -> int:
        """Tokens of the request that are in the cache; 0 when unknown."""
        return self._contexts.get(request, 0)

    def fill(self, block: int) -> int:
        """Tokens in the block, from 0 to ``block_size``."""
        if self._published[block]:
            return self.block_size
        most = 0
        for request, index in self.references(block).items():
            most = max(most, self.context(request) - index * self.block_size)
        return min(most, self.block_size)

    def changed_since(self, version: int) -> set[int] | None:
        """Blocks to draw again since ``version``; None when that is too long ago to tell."""
        seen = len(self._log) - (self.version - version)
        return set(self._log[seen:]) if seen >= 0 else None
