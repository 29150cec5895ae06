"""Paged attention by flash-attn 2 and 3. Both are optional, so they are imported when they are built."""

import importlib
from types import ModuleType
from typing import Any

import torch.nn.functional as F
from packaging.version import InvalidVersion, Version
from torch import Tensor

from engine.attention.append import append
from engine.attention.base import PagedBatch
from engine.kv_cache import KVCache

# The versions whose paged call reads nothing back to the host, which a capture would not survive.
FLASH2_VERSIONS = ("2.8", "2.8.3.post2")
FLASH2_PAGE = 256


class FlashAttention2:
    """flash-attn 2: ``flash_attn_with_kvcache`` for one token a row, ``flash_attn_varlen_func`` for more.

    Both read the pages in place. The first picks its split count on the host from the width of the block
    table, so graph and eager agree as long as their tables are equally wide.

    Source: Dao, "FlashAttention-2" (2023); interface of the flash-attn package, 2.8.

    Raises:
        ImportError: the package is missing, does not load, or has a version outside ``FLASH2_VERSIONS``.
    """

    name = "flash"
    capturable = True

    def __init__(self) -> None:
        module = _import("flash_attn", "flash-attn")
        self.title = f"flash-attn {_checked_version(module)}"
        self._decode = _member(module, "flash_attn_with_kvcache", "flash-attn")
        self._prefill = _member(module, "flash_attn_varlen_func", "flash-attn")
        self._cumulative: tuple[PagedBatch, Tensor] | None = None

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
        # Not the package's own append: it would write the rows of padding into the null block.
        append(cache, layer, key, value, batch.slot_mapping)
        keys, values = cache.layer(layer)
        if _one_token_each(batch):
            return self._decode(
                query.unsqueeze(1),
                keys,
                values,
                cache_seqlens=batch.context_lens,
                block_table=batch.block_tables,
                softmax_scale=scale,
                causal=True,
                window_size=_window_size(window),
            ).squeeze(1)
        assert batch.contexts is not None, "only decode launches are static"
        return self._prefill(
            query,
            keys,
            values,
            batch.cu_seqlens_q,
            self._cumulative_contexts(batch),
            max(batch.query_lens),
            max(batch.contexts),
            softmax_scale=scale,
            causal=True,
            window_size=_window_size(window),
            block_table=batch.block_tables,
        )

    def _cumulative_contexts(self, batch: PagedBatch) -> Tensor:
        """[B + 1] int32, where each sequence's keys would begin; the same for all layers of a prefill.

        Prefill is never captured and its batches are never changed, so what is kept cannot become stale.
        """
        if self._cumulative is None or self._cumulative[0] is not batch:
            ends = batch.context_lens.cumsum(0, dtype=batch.context_lens.dtype)
            self._cumulative = (batch, F.pad(ends, (1, 0)))
        return self._cumulative[1]


class FlashAttention3:
    """flash-attn 3, for Hopper: one paged call for decode and prefill, any block size.

    Source: Shah et al., "FlashAttention-3" (2024); module ``flash_attn_interface`` of its repository.

    Raises:
        ImportError: the package is missing or does not load.
    """

    name = "flash"
    title = "flash-attn 3"
    capturable = True

    def __init__(self) -> None:
        module = _import("flash_attn_interface", "flash-attn 3")
        self._attend = _member(module, "flash_attn_with_kvcache", "flash-attn 3")

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
        """See ``AttentionBackend.attend``; float16 and bfloat16."""
        append(cache, layer, key, value, batch.slot_mapping)
        keys, values = cache.layer(layer)
        one_each = _one_token_each(batch)
        packed = {} if one_each else _packed(batch)
        out = self._attend(
            query.unsqueeze(1) if one_each else query,
            keys,
            values,
            cache_seqlens=batch.context_lens,
            page_table=batch.block_tables,
            softmax_scale=scale,
            causal=True,
            window_size=_window_size(window),
            **packed,
        )
        return out.squeeze(1) if one_each else out


def _packed(batch: PagedBatch) -> dict[str, Any]:
    return {"cu_seqlens_q": batch.cu_seqlens_q, "max_seqlen_q": max(batch.query_lens)}


def _one_token_each(batch: PagedBatch) -> bool:
    """Also true of a prefill whose prompts are cached but for their last token: the same rows as decode."""
    return batch.decode or max(batch.query_lens) == 1


def _window_size(window: int | None) -> tuple[int, int]:
    """Tokens seen to the left and to the right of a query's own; -1 sees all that causality allows."""
    return (-1, -1) if window is None else (window - 1, 0)


def _import(name: str, title: str) -> ModuleType:
    """The module, or an ImportError whose message is a reason to show."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ImportError(f"{title} is not installed") from None
        raise ImportError(f"{title} does not load: it needs the module {error.name}") from error
    except (ImportError, OSError) as error:  # mostly a library that was built for another torch
        raise ImportError(f"{title} does not load: {error}") from error


def _checked_version(module: ModuleType) -> str:
    lowest, highest = FLASH2_VERSIONS
    text = str(getattr(module, "__version__", "of unknown version"))
    try:
        # A build names its CUDA and torch behind a plus, which says nothing of the interface.
        known = Version(lowest) <= Version(Version(text).public) <= Version(highest)
    except InvalidVersion:
        known = False
    if not known:
        raise ImportError(f"flash-attn {text} is not one of the versions from {lowest} to {highest}")
    return text


def _member(module: ModuleType, name: str, title: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise ImportError(f"{title} has no {name}")
    return found
