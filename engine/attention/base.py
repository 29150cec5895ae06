"""The value that travels with a launch, and what a back end must do with it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What attention needs to know of one packed launch; T tokens of B sequences.

    Attributes:
        slot_mapping: [T] int64, flat cache slot (block * block_size + offset) of each new token; -1 is a
            padding row, of which nothing is written.
        block_tables: [B, W] int32 on the device, padded with the null block.
        context_lens: [B] int32 on the device, cached tokens per sequence, this launch's included.
        cu_seqlens_q: [B + 1] int32 on the device, where each sequence's new tokens begin.
        query_lens: the same on the host, new tokens per sequence.
        contexts: ``context_lens`` on the host; None where only the device knows them, which is so in the
            static decode launches that CUDA graphs replay: no host integer but a shape may be read there.
        decode: every sequence has exactly one new token.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    context_lens: Tensor
    cu_seqlens_q: Tensor
    query_lens: tuple[int, ...]
    contexts: tuple[int, ...] | None
    decode: bool


class AttentionBackend(Protocol):
    """A paged attention implementation, bound to the engine's KV cache.

    ``capturable`` back ends read no host integer but shapes in a static decode launch, and nothing back.
    """

    name: str
    capturable: bool

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
        """Append ``key`` and ``value`` to the cache and attend causally over each sequence.

        Args:
            layer: decoder layer, selects the pages.
            query: [T, query heads, head dim].
            key: [T, kv heads, head dim], value the same.
            batch: where the tokens belong.
            scale: factor on the scores before the softmax.
            window: a query sees at most this many latest tokens, itself included; None sees all.

        Returns:
            [T, query heads, head dim] in the dtype of ``query``.
        """
        ...
