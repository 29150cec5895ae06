"""Reference back end: torch's scaled_dot_product_attention over gathered pages. Runs anywhere."""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache


class SdpaAttention:
    """Gathers each sequence's pages and calls SDPA; decode is one batched call a layer."""

    name = "sdpa"

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
        rows, heads, dim = query.shape
        kv_heads = cache.shape.num_kv_heads
        blocks = -(-batch.max_context // cache.block_size)
        tables = batch.block_tables[:, :blocks]
        keys, values = (
            pages.index_select(0, tables.flatten()).view(rows, blocks * cache.block_size, kv_heads, dim)
            for pages in cache.layer(layer)
        )
        mask = _decode_mask(batch.context_lens, blocks * cache.block_size, window)
        # The query heads of a group attend to the same keys, so they stand in the query axis: no
        # repeated keys, and one matrix product a kv head.
        grouped = query.view(rows, kv_heads, heads // kv_heads, dim)
        out = F.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
        )
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


def _decode_mask(context_lens: Tensor, width: int, window: int | None) -> Tensor:
    """[B, 1, 1, width] bool, True where a cached token is seen by the newest one."""
    position = torch.arange(width, device=context_lens.device)
    lengths = context_lens[:, None]
    seen = position < lengths
    if window is not None:
        seen &= position >= lengths - window
    return seen[:, None, None, :]


def _prefill_mask(length: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """[length, context] bool for the last ``length`` of ``context`` tokens."""
    query = torch.arange(context - length, context, device=device)[:, None]
    position = torch.arange(context, device=device)[None, :]
    seen = position <= query
    if window is not None:
        seen &= position > query - window
    return seen
