"""New keys and values into the paged cache: one Triton launch on CUDA, torch elsewhere."""

from collections.abc import Callable
from functools import cache as cached

from torch import Tensor

from engine.kv_cache import KVCache


def append(cache: KVCache, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Write the new tokens of a layer; capturable in a CUDA graph.

    Args:
        cache: the pages; only the named slots of ``layer`` change.
        key: [T, kv heads, head dim], any strides; ``value`` the same.
        slot_mapping: [T] int64, flat slots (block * block_size + offset); -1 writes nothing.
    """
    kernel = _kernel() if key.is_cuda else None
    if kernel is None:
        cache.append(layer, key, value, slot_mapping)
    else:
        kernel(*cache.layer(layer), key, value, slot_mapping)


@cached
def _kernel() -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None] | None:
    """The Triton kernel's launcher, None where triton does not import."""
    try:
        from engine.kernels.append import append as launch
    except ImportError:
        return None
    return launch
