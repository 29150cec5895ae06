"""Reference back end: torch's scaled_dot_product_attention over gathered pages. Runs anywhere."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache


class SdpaAttention:
    """Gathers each sequence's pages and calls SDPA; decode rows of like length share a call."""

    name = "sdpa"

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
        cache.append(layer, key, value, batch.slot_mapping)
        if batch.decode:
            return self._decode(layer, query, batch, cache, scale, window)
        return self._prefill(layer, query, key, value, batch, cache, scale, window)

    def _decode(
        self, layer: int, query: Tensor, batch: PagedBatch, cache: KVCache, scale: float, window: int | None
    ) -> Tensor:
        if self._groups is None or self._groups[0] is not batch:
            self._groups = (batch, _groups(batch, cache))
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
            position = torch.arange(self.width, device=self.lengths.device)
            hidden = position >= self.lengths
            if window is not None:
                hidden |= position < self.lengths - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._masks[window] = mask.masked_fill_(hidden, -torch.inf)[:, None, None, :]
        return self._masks[window]


def _groups(batch: PagedBatch, cache: KVCache) -> list[_Group]:
    """Rows sorted into groups in which none is padded to more than twice its blocks."""
    blocks = [-(-context // cache.block_size) for context in batch.contexts]
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
