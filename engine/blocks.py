"""The KV block pool: who holds which block, and what can be shared or reused. Torch-free.

A block is in one of three states. *Used*: at least one request refers to it. *Cached*: nobody does,
but it is published in the prefix index, so a later prompt may pick it up. *Free*: neither. Block 0 is
the null block, in none of them: padded rows write there. Every operation costs the blocks that it
touches, never the size of the pool.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from engine.errors import ConfigError, EngineError
from engine.prefix import Chain, Key, PrefixIndex, root_key
from engine.records import BlockChange, BlockChangeKind, BlockCounts, BlockOwner, BlockSnapshot
from engine.request import Request

NULL_BLOCK = 0


class BrokenInvariant(EngineError):
    """The pool or the scheduler contradicts itself; a bug of the engine, never of its user."""

    title = "broken invariant"


class BlockPool:
    """Hands out blocks ``1 .. num_blocks - 1`` of ``block_size`` tokens each.

    Args:
        num_blocks: blocks in the KV cache, the null block included.
        block_size: tokens per block.
        prefix_cache: publish full blocks and share them between requests.
        identity: what KV depends on beside the tokens (model, dtype, salt), for the names of blocks.

    Attributes:
        step: number of the step that changes are made for, kept by the engine.

    Raises:
        ConfigError: when there is no block for tokens.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_cache: bool = True,
        *,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        if num_blocks < 2 or block_size < 1:
            raise ConfigError(
                f"A pool of {num_blocks} blocks of {block_size} tokens holds nothing.",
                "It takes the null block, at least one more, and at least one token per block.",
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.releases = 0  # grows whenever blocks come back; tells waiting requests when to look again
        self.step = 1
        self._root = root_key(identity or {})
        self._references = [0] * num_blocks
        self._last_used = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))  # a stack: the lowest id is handed out first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._index = PrefixIndex()
        self._chains: dict[int, Chain] = {}
        self._changes: list[BlockChange] = []

    # --- questions ---------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Blocks that can be allocated now: free ones, and cached ones after eviction."""
        return len(self._free) + len(self._cached)

    @property
    def capacity(self) -> int:
        """Tokens that fit when one request has the whole pool."""
        return (self.num_blocks - 1) * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that ``tokens`` tokens take."""
        return -(-tokens // self.block_size)

    def counts(self) -> BlockCounts:
        """Used, cached and free; together every block but the null block."""
        cached, free = len(self._cached), len(self._free)
        return BlockCounts(self.num_blocks - 1 - cached - free, cached, free)

    def is_used(self, block: int) -> bool:
        """True while a request refers to the block."""
        return self._references[block] > 0

    def references(self, block: int) -> int:
        """How many requests refer to the block."""
        return self._references[block]

    def last_used(self, block: int) -> int:
        """Step in which the block was last taken, shared or released; 0 where it never was."""
        return self._last_used[block]

    def content(self, block: int) -> tuple[Key, tuple[int, ...]] | None:
        """Name and tokens of a published block; None for others."""
        return self._index.content(block)

    def drain_changes(self) -> tuple[BlockChange, ...]:
        """What happened since the last call, in order."""
        changes = tuple(self._changes)
        self._changes.clear()
        return changes

    def published(self) -> list[int]:
        """Blocks in the prefix index, ascending."""
        return self._index.blocks()

    def snapshot(self, step: int, requests: Iterable[Request]) -> BlockSnapshot:
        """The whole pool, for a reader that missed changes. ``requests`` are all that hold blocks."""
        owners = [
            BlockOwner(block, r.id, index) for r in requests for index, block in enumerate(r.block_table)
        ]
        return BlockSnapshot(step=step, owners=owners, published=self.published())

    # --- sharing -----------------------------------------------------------------------------------

    def match(self, request: Request) -> list[int]:
        """Published blocks that continue the request's block table, in order; changes nothing.

        At most ``num_tokens - 1`` tokens are covered: the last one must be computed to get logits.
        Between two blocks only, that is where ``num_computed`` is the length of the table.
        """
        start = len(request.block_table)
        if not self.prefix_cache or request.num_computed != start * self.block_size:
            return []
        chain = self._chain(request)
        if chain.published is None:
            return []
        found: list[int] = []
        for index in range(start, (request.num_tokens - 1) // self.block_size):
            chain.extend(request, index + 1, self.block_size, self._root)
            block = self._index.find(chain.keys[index], chain.tokens[index])
            if block is None:
                break
            found.append(block)
        return found

    def share(self, request: Request, blocks: list[int]) -> None:
        """Append matched blocks to the request's table, one more reference each."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1
            self._note("share", block, request.id, len(request.block_table))
            request.block_table.append(block)

    def fork(self, parent: Request, child: Request) -> None:
        """Give the child a reference to every block of the parent, the partly filled one included."""
        for index, block in enumerate(parent.block_table):
            self._references[block] += 1
            self._note("share", block, child.id, index)
        child.block_table = list(parent.block_table)

    def tail_is_shared(self, request: Request) -> bool:
        """True when the request's next token would be written into a block that others read too."""
        partial = request.num_computed % self.block_size != 0
        return partial and self.shares_tail(request)

    def shares_tail(self, request: Request) -> bool:
        """True when others refer to the last block of the request's table, full or not."""
        return self._references[request.block_table[-1]] > 1

    def copy_tail(self, request: Request) -> tuple[int, int]:
        """Replace a shared, partly filled last block by a block of the request's own.

        Returns:
            Source and target; the caller copies the content before anything is written.
        """
        table = request.block_table
        source = table.pop()
        self._references[source] -= 1
        self._note("release", source, request.id, len(table))
        return source, self._take(request, "copy")

    def names(self, request: Request, start: int, end: int) -> list[Key]:
        """Names of the full blocks that computing tokens ``[start, end)`` completes; none without a cache."""
        if not self.prefix_cache or request.num_tokens < end:
            return []
        first, last = start // self.block_size, end // self.block_size
        chain = self._chain(request)
        chain.extend(request, last, self.block_size, self._root)
        return chain.keys[first:last]

    # --- taking and giving back --------------------------------------------------------------------

    def allocate(self, request: Request, count: int = 1) -> None:
        """Append ``count`` writable blocks to the request's table; the least recently used go first.

        Raises:
            BrokenInvariant: when fewer are available; the caller has to ask before.
        """
        if count > self.available:
            raise BrokenInvariant(f"{count} blocks were asked for with {self.available} available.")
        for _ in range(count):
            self._take(request, "allocate")

    def _take(self, request: Request, kind: BlockChangeKind) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._index.drop(block)
            self._note("evict", block)
        self._references[block] = 1
        self._note(kind, block, request.id, len(request.block_table))
        request.block_table.append(block)
        return block

    def publish(self, request: Request) -> None:
        """Enter the request's full, computed blocks into the index.

        To be called after the step that filled them, never before: a hit reads the KV at once.
        A block whose content another block already has stays private to its request.
        """
        full = request.num_computed // self.block_size
        if not self.prefix_cache:
            return
        chain = self._chain(request)
        if chain.published is None or full <= chain.published:
            return
        chain.extend(request, full, self.block_size, self._root)
        for index in range(chain.published, full):
            block, key, tokens = request.block_table[index], chain.keys[index], chain.tokens[index]
            if self._index.add(key, tokens, block):
                self._note("publish", block, request.id, index)
            elif self._index.find(key, tokens) is None:
                chain.published = None
                return
        chain.published = full

    def release(self, request: Request) -> None:
        """Drop all references of the request, tail first, so that a prefix outlives what follows it."""
        self.releases += 1
        for index in reversed(range(len(request.block_table))):
            block = request.block_table[index]
            self._references[block] -= 1
            self._note("release", block, request.id, index)
            if self._references[block] > 0:
                continue
            if block in self._index:
                self._cached[block] = None
            else:
                self._free.append(block)
        request.block_table.clear()
        chain = self._chains.get(request.id)
        if chain is not None and chain.published is not None:
            chain.published = 0

    def forget(self, request: Request) -> None:
        """Release, and drop what was remembered for a request that will not come back."""
        self.release(request)
        self._chains.pop(request.id, None)

    def clear_cache(self) -> None:
        """Give up everything that nobody uses, for instance after a device error."""
        while self._cached:
            block, _ = self._cached.popitem(last=False)
            self._index.drop(block)
            self._note("evict", block)
            self._free.append(block)

    # --- invariants --------------------------------------------------------------------------------

    def check(self, requests: Iterable[Request]) -> None:
        """Prove conservation against all requests that hold blocks; costs the size of the pool.

        Raises:
            BrokenInvariant: naming what does not add up.
        """
        held: Counter[int] = Counter()
        for request in requests:
            table = request.block_table
            if len(set(table)) != len(table):
                raise BrokenInvariant(f"Request {request.id} holds a block twice: {table}.")
            if len(table) * self.block_size < request.num_computed:
                raise BrokenInvariant(
                    f"Request {request.id} has {request.num_computed} tokens in {len(table)} blocks."
                )
            held.update(table)
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free) or free & cached:
            raise BrokenInvariant("A block is free twice, or free and cached.")
        if NULL_BLOCK in held or NULL_BLOCK in free or NULL_BLOCK in cached or NULL_BLOCK in self._index:
            raise BrokenInvariant("The null block was handed out.")
        for block in range(1, self.num_blocks):
            if self._references[block] != held[block]:
                raise BrokenInvariant(
                    f"Block {block} counts {self._references[block]} references and has {held[block]}."
                )
            states = (held[block] > 0) + (block in free) + (block in cached)
            if states != 1:
                raise BrokenInvariant(f"Block {block} is in {states} of the states used, cached and free.")
            if block in free and block in self._index:
                raise BrokenInvariant(f"Block {block} is free and still published.")
            if block in cached and block not in self._index:
                raise BrokenInvariant(f"Block {block} is cached and not published.")
        if not self._index.check():
            raise BrokenInvariant("The two directions of the prefix index disagree.")

    def _chain(self, request: Request) -> Chain:
        chain = self._chains.get(request.id)
        if chain is None:
            chain = self._chains[request.id] = Chain()
        return chain

    def _note(self, kind: BlockChangeKind, block: int, request: int = -1, index: int = -1) -> None:
        self._changes.append(BlockChange(kind, block, request, index))
        if kind != "publish" and kind != "evict":
            self._last_used[block] = self.step
