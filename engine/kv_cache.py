"""The paged KV cache: one pair of tensors a layer, block 0 is the null block."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import OutOfMemory

NULL_BLOCK = 0


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token of context costs; head counts are per layer and equal over layers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Keys and values over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


def kv_shape(config: Any, dtype: torch.dtype) -> KVShape:
    """Cache geometry of a transformers config (its text part where it is multimodal)."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    heads = text.num_attention_heads
    return KVShape(
        num_layers=text.num_hidden_layers,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        dtype=dtype,
    )


class KVCache:
    """Keys and values in pages of ``block_size`` tokens.

    Memory is zeroed: a masked score times a stale value must be zero, and 0 * NaN is not.

    Args:
        shape: layers, heads and dtype.
        num_blocks: pages, the null block included.
        block_size: tokens a page.

    Raises:
        OutOfMemory: with the bytes asked for.
    """

    def __init__(self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = (shape.num_layers, 2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        try:
            self.pages = _zeros(size, shape.dtype, device)
        except (RuntimeError, MemoryError, ValueError, OverflowError) as error:  # the last: no such size
            need = num_blocks * block_size * shape.bytes_per_token / 2**20
            raise OutOfMemory(
                f"The KV cache of {num_blocks} blocks needs {need:.0f} MiB, which {device} does not have.",
                "Lower --num-blocks, --kv-memory or --max-model-len.",
            ) from error

    @property
    def num_bytes(self) -> int:
        return self.pages.numel() * self.pages.element_size()

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [num_blocks, block_size, kv heads, head dim]."""
        return self.pages[layer, 0], self.pages[layer, 1]

    def append(
        self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, *, padded: bool = True
    ) -> None:
        """Write [T, kv heads, head dim] keys and values to flat slots [T] int64; -1 writes nothing.

        Args:
            padded: there may be slots of -1; False saves looking at them.
        """
        for pages, new in zip(self.layer(layer), (key, value)):
            flat = pages.flatten(0, 1)
            if padded:
                # Without a branch on data, so that a graph can hold it: a padding row writes what the
                # null block's first slot holds already.
                slots = slot_mapping.clamp(min=0)
                kept = flat.index_select(0, slots)
                flat.index_copy_(0, slots, torch.where((slot_mapping >= 0)[:, None, None], new, kept))
            else:
                flat.index_copy_(0, slot_mapping, new)

    def copy(self, source: int, target: int) -> None:
        """Copy one block in all layers."""
        self.pages[:, :, target] = self.pages[:, :, source]

    def clear(self, block: int) -> None:
        """Zero one block in all layers."""
        self.pages[:, :, block].zero_()


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed memory; on a CPU pages come from the system when first touched, so that start-up is quick."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)
