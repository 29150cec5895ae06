"""Paged attention cases with what they must give, computed in float64; on any device."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, PagedBatch
from engine.kv_cache import NULL_BLOCK, KVCache, KVShape

STALE = 50.0  # spread of what lies in slots that no sequence of the case owns; real keys have a spread of 1
LAYER = 1


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, kv heads, head dim."""

    query: int
    kv: int
    dim: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv}/{self.dim}"


@dataclass(slots=True)
class PagedCase:
    """Sequences on shuffled pages of a two-layer cache; their last ``new`` tokens are still to be appended.

    Attributes:
        contexts: tokens a sequence, new ones included; a decode case may end with padded rows.
        slots: of the real new tokens.
    """

    heads: Heads
    contexts: tuple[int, ...]
    new: tuple[int, ...]
    cache: KVCache
    batch: PagedBatch
    query: Tensor
    key: Tensor
    value: Tensor
    padded: int = 0
    slots: list[int] = field(default_factory=list)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.heads.dim)

    def move_to(self, contexts: Sequence[int]) -> None:
        """Change the lengths of a decode case in its own tensors, as between two replays of a graph."""
        size = self.cache.block_size
        self.contexts = tuple(contexts)
        lengths = torch.tensor([*contexts, *[1] * self.padded], dtype=torch.int32)
        self.batch.context_lens.copy_(lengths)
        tables = self.batch.block_tables.cpu()
        last = [(row, context - 1) for row, context in enumerate(contexts)]
        self.slots = [int(tables[row, at // size]) * size + at % size for row, at in last]
        self.batch.slot_mapping.copy_(torch.tensor(self.slots + [-1] * self.padded))

    def only(self, row: int) -> "PagedCase":
        """The same pages with one sequence of a decode case alone."""
        one = slice(row, row + 1)
        batch = PagedBatch(
            slot_mapping=self.batch.slot_mapping[one],
            block_tables=self.batch.block_tables[one],
            context_lens=self.batch.context_lens[one],
            cu_seqlens_q=self.batch.cu_seqlens_q[:2],
            query_lens=(1,),
            contexts=(self.contexts[row],),
            decode=True,
        )
        new = (self.query[one], self.key[one], self.value[one])
        return PagedCase(
            self.heads, (self.contexts[row],), (1,), self.cache, batch, *new, slots=[self.slots[row]]
        )

    def attend(self, backend: AttentionBackend, window: int | None = None) -> Tensor:
        """What a back end makes of it, on memory that was NaN before."""
        with nan_filled_memory():
            return backend.attend(
                LAYER,
                self.query,
                self.key,
                self.value,
                self.batch,
                self.cache,
                scale=self.scale,
                window=window,
            )

    def expected(self, window: int | None = None) -> Tensor:
        """[real new tokens, query heads, head dim] float64, from the same rounded inputs."""
        keys, values = self.cache.layer(LAYER)
        outputs, begin = [], 0
        for row, (context, new) in enumerate(zip(self.contexts, self.new)):
            end = begin + new
            blocks = self.batch.block_tables[row, : -(-context // self.cache.block_size)].long()
            whole = [
                torch.cat([pages[blocks].flatten(0, 1)[: context - new], fresh[begin:end]]).double()
                for pages, fresh in ((keys, self.key), (values, self.value))
            ]
            outputs.append(attention(self.query[begin:end].double(), *whole, self.scale, window))
            begin = end
        return torch.cat(outputs)

    def error(self, out: Tensor, window: int | None = None) -> float:
        """Norm of the difference to the reference over the norm of the reference."""
        expected = self.expected(window)
        return ((out[: len(expected)].double() - expected).norm() / expected.norm()).item()


def attention(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
    """Causal attention of the last positions of a context.

    Args:
        query: [n, query heads, head dim], the last ``n`` positions.
        keys: [context, kv heads, head dim]; ``values`` the same.
        window: a query sees at most this many latest positions, itself included.
    """
    new, heads, dim = query.shape
    context, kv_heads, _ = keys.shape
    grouped = query.view(new, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("nkgd,ckd->kgnc", grouped, keys) * scale
    last = torch.arange(context - new, context, device=query.device)[:, None]
    position = torch.arange(context, device=query.device)[None, :]
    hidden = position > last
    if window is not None:
        hidden |= position <= last - window
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.einsum("kgnc,ckd->nkgd", weights, values).reshape(new, heads, dim)


def paged_case(
    heads: Heads,
    contexts: Sequence[int],
    new: Sequence[int] | None = None,
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    padded: int = 0,
    width: int | None = None,
    static: bool = False,
    stale: float = STALE,
    seed: int = 0,
) -> PagedCase:
    """Draw a case.

    Args:
        contexts: tokens a sequence, new ones included.
        new: new tokens a sequence; None is one each, a decode launch.
        padded: rows behind the real ones that a graph of a larger size would carry.
        width: columns of the block tables; None is the longest table.
        static: as in a CUDA graph, no length is known on the host.
        stale: spread of the slots that no sequence owns, or NaN.
    """
    decode = new is None
    new = [1] * len(contexts) if new is None else list(new)
    draw = torch.Generator(device).manual_seed(seed)
    blocks = [-(-context // block_size) for context in contexts]
    pages = 1 + sum(blocks) + 2
    cache = KVCache(KVShape(2, heads.kv, heads.dim, dtype), pages, block_size, torch.device(device))

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, device=device, dtype=torch.float32).to(dtype)

    cache.pages.copy_(random(*cache.pages.shape))
    order = (1 + torch.randperm(pages - 1, generator=draw, device=device)).tolist()
    width = width or max(blocks)
    owned = torch.zeros(pages * block_size, dtype=torch.bool, device=device)
    tables = torch.full((len(contexts) + padded, width), NULL_BLOCK, dtype=torch.int32, device=device)
    slots, cumulative = [], [0]
    for row, (context, n) in enumerate(zip(contexts, new)):
        table = torch.tensor([order.pop() for _ in range(blocks[row])], device=device)
        tables[row, : blocks[row]] = table
        flat = (table[:, None] * block_size + torch.arange(block_size, device=device)).flatten()[:context]
        owned[flat[: context - n]] = True
        slots += flat[context - n :].tolist()
        cumulative.append(cumulative[-1] + n)
    cache.pages[LAYER].view(2, pages * block_size, -1)[:, ~owned] *= stale
    cache.clear(NULL_BLOCK)
    rows = sum(new) + padded
    lengths = [*contexts, *[1] * padded]
    batch = PagedBatch(
        slot_mapping=torch.tensor(slots + [-1] * padded, dtype=torch.int64, device=device),
        block_tables=tables,
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.tensor(
            [*cumulative, *range(cumulative[-1] + 1, cumulative[-1] + 1 + padded)],
            dtype=torch.int32,
            device=device,
        ),
        query_lens=(*new, *[1] * padded),
        contexts=None if static else tuple(lengths),
        decode=decode,
    )
    query = random(rows, heads.query, heads.dim)
    key, value = random(rows, heads.kv, heads.dim), random(rows, heads.kv, heads.dim)
    return PagedCase(heads, tuple(contexts), tuple(new), cache, batch, query, key, value, padded, slots)


@contextmanager
def nan_filled_memory() -> Iterator[None]:
    """``torch.empty`` gives NaN, to extensions too: a row that nobody writes is seen at once."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(8).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
