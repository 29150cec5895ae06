"""Reference back end: torch's scaled_dot_product_attention over gathered pages. Runs anywhere."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache


class SdpaAttention:
    """Gathers each sequence's pages and calls SDPA; decode rows of like length share a call.

    A static decode launch has no lengths on the host, so there every row is gathered over its whole table:
    right anywhere, and slow where tables are wide.
    """

    name = "sdpa"
    capturable = True

    def __init__(self) -> None:
        self._groups: tuple[PagedBatch, list[_Group]] | None = None

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: PagedBatch,
        cache: KVCache,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """See ``AttentionBackend.attend``."""
        cache.append(layer, key, value, batch.slot_mapping, padded=batch.contexts is None)
        if batch.contexts is None:
            return self._static_decode(layer, query, batch, cache, scale, window)
        if batch.decode:
            return self._decode(layer, query, batch, cache, scale, window)
        return self._prefill(layer, query, key, value, batch, cache, scale, window)

    def _decode(
        self, layer: int, query: Tensor, batch: PagedBatch, cache: KVCache, scale: float, window: int | None
    ) -> Tensor:
        if self._groups is None or self._groups[0] is not batch:
            self._groups = (batch, _groups(batch, batch.contexts, cache))
        rows, heads, dim = query.shape
        kv_heads = cache.shape.num_kv_heads
        # The query heads of a kv head attend to the same keys, so they stand in the query axis: no
        # repeated keys, and one matrix product a kv head.
        grouped = query.view(rows, kv_heads, heads // kv_heads, dim)
        groups = self._groups[1]
        out = torch.empty_like(grouped)
        for group in groups:
            keys, values = (
                pages.index_select(0, group.blocks).view(-1, group.width, kv_heads, dim).transpose(1, 2)
                for pages in cache.layer(layer)
            )
            out[group.rows] = F.scaled_dot_product_attention(
                grouped[group.rows], keys, values, attn_mask=group.mask(window, query.dtype), scale=scale
            )
        return out.view(rows, heads, dim)

    @staticmethod
    def _static_decode(
        layer: int, query: Tensor, batch: PagedBatch, cache: KVCache, scale: float, window: int | None
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads = cache.shape.num_kv_heads
        blocks = batch.block_tables.flatten()
        width = batch.block_tables.shape[1] * cache.block_size
        mask = _decode_mask(batch.context_lens[:, None], width, window, query.dtype)
        keys, values = (
            pages.index_select(0, blocks).view(rows, width, kv_heads, dim).transpose(1, 2)
            for pages in cache.layer(layer)
        )
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return out.reshape(rows, heads, dim)

    def _prefill(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: PagedBatch,
        cache: KVCache,
        scale: float,
        window: int | None,
    ) -> Tensor:
        assert batch.contexts is not None, "a prefill is never static"
        out = torch.empty_like(query)
        groups = query.shape[1] // key.shape[1]
        begin = 0
        for row, (length, context) in enumerate(zip(batch.query_lens, batch.contexts)):
            end = begin + length
            if length == context:
                keys, values = key[begin:end], value[begin:end]
            else:
                keys, values = self._pages(layer, batch.block_tables[row], context, cache)
            causal = length == context and (window is None or window >= context)
            mask = None if causal else _prefill_mask(length, context, window, query.device)
            out[begin:end] = F.scaled_dot_product_attention(
                query[begin:end].transpose(0, 1).unsqueeze(0),
                keys.repeat_interleave(groups, dim=1).transpose(0, 1).unsqueeze(0),
                values.repeat_interleave(groups, dim=1).transpose(0, 1).unsqueeze(0),
                attn_mask=mask,
                is_causal=causal,
                scale=scale,
            )[0].transpose(0, 1)
            begin = end
        return out

    @staticmethod
    def _pages(layer: int, table: Tensor, context: int, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Keys and values [context, kv heads, head dim] of one sequence."""
        blocks = table[: -(-context // cache.block_size)]
        keys, values = cache.layer(layer)
        return (
            keys.index_select(0, blocks).flatten(0, 1)[:context],
            values.index_select(0, blocks).flatten(0, 1)[:context],
        )


@dataclass(slots=True)
class _Group:
    """Decode rows of like length, padded to ``width`` tokens; shared by all layers of a step."""

    rows: Tensor
    blocks: Tensor
    lengths: Tensor
    width: int
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[rows, 1, 1, width], 0 where a cached token is seen by the newest one, else -inf."""
        if window not in self._masks:
            self._masks[window] = _decode_mask(self.lengths, self.width, window, dtype)
        return self._masks[window]


def _decode_mask(lengths: Tensor, width: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[rows, 1, 1, width] of ``lengths`` [rows, 1]: 0 where the newest token sees a cached one, else -inf."""
    position = torch.arange(width, device=lengths.device)
    hidden = position >= lengths
    if window is not None:
        hidden |= position < lengths - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, -torch.inf)[:, None, None, :]


def _groups(batch: PagedBatch, contexts: tuple[int, ...] | None, cache: KVCache) -> list[_Group]:
    """Rows sorted into groups in which none is padded to more than twice its blocks."""
    assert contexts is not None, "a static batch has no lengths to group by"
    blocks = [-(-context // cache.block_size) for context in contexts]
    order = sorted(range(len(blocks)), key=blocks.__getitem__, reverse=True)
    members: list[list[int]] = []
    for row in order:
        if members and 2 * blocks[row] >= blocks[members[-1][0]]:
            members[-1].append(row)
        else:
            members.append([row])
    groups = []
    for rows in members:
        width = blocks[rows[0]]
        index = torch.tensor(rows, device=batch.block_tables.device)
        groups.append(
            _Group(
                rows=index,
                blocks=batch.block_tables[index, :width].flatten(),
                lengths=batch.context_lens[index, None],
                width=width * cache.block_size,
            )
        )
    return groups


def _prefill_mask(length: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """[length, context] bool for the last ``length`` of ``context`` tokens."""
    query = torch.arange(context - length, context, device=device)[:, None]
    position = torch.arange(context, device=device)[None, :]
    seen = position <= query
    if window is not None:
        seen &= position > query - window
    return seen
