"""Paged attention by torch's own variable-length flash attention, ``varlen_attn`` of torch 2.12 and later."""

import importlib
import inspect

import torch
from torch import Tensor

from engine.attention.append import append
from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache

# The flash attention inside torch checks it; only packages that replace it take other sizes.
VARLEN_PAGE = 256


class VarlenAttention:
    """Decode and prefill by one paged call of ``torch.nn.attention.varlen.varlen_attn``.

    Always with one split: a larger or automatic number combines packed rows at wrong places and leaves
    about one in a hundred unwritten (torch 2.12 and 2.13).

    Raises:
        ImportError: this torch cannot page there.
    """

    name = "varlen"
    capturable = True

    def __init__(self) -> None:
        missing = f"torch {torch.__version__} has no varlen_attn with a block table, which came in 2.12"
        try:
            varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        except (ImportError, AttributeError):
            raise ImportError(missing) from None
        if not {"block_table", "seqused_k", "num_splits"} <= inspect.signature(varlen_attn).parameters.keys():
            raise ImportError(missing)
        self._attend = varlen_attn
        self.title = f"varlen of torch {torch.__version__}"

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
        """See ``AttentionBackend.attend``; float16 and bfloat16, block sizes that are multiples of 256."""
        append(cache, layer, key, value, batch.slot_mapping)
        keys, values = cache.layer(layer)
        out: Tensor = self._attend(
            query,
            keys,
            values,
            batch.cu_seqlens_q,
            # Must be there, but its content is not read: seqused_k gives the lengths, and pages have no
            # place in a packed sequence.
            batch.cu_seqlens_q,
            max(batch.query_lens),
            # What a table can hold, not the longest context: a host integer that no step changes.
            batch.block_tables.shape[1] * cache.block_size,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=batch.context_lens,
            block_table=batch.block_tables,
            num_splits=1,
        )
        return out
