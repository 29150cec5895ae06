"""How many KV blocks there are: what was asked for, or what the device has left."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.device import available_memory
from engine.errors import ConfigError, OutOfMemory
from engine.kv_cache import KVCache, KVShape
from engine.models.memory import size_text

# What the cache takes on a machine without a GPU when nothing was asked for.
CPU_KV_BYTES = 512 * 2**20
# Left free on a card beside everything that was measured: other programs' displays, fragments, libraries.
CUDA_RESERVE = 512 * 2**20
FEWEST_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the engine takes beside its KV cache, in bytes.

    ``activations`` are the peak of the largest prefill and of sampling, ``graphs`` what all captures keep.
    """

    weights: int
    activations: int = 0
    graphs: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes for the KV cache, in words where they come from, and what the user should know of it."""

    num_bytes: int
    origin: str
    note: str = ""


def kv_budget(config: EngineConfig, device: torch.device, use: MemoryUse) -> Budget:
    """Bytes that may become KV blocks."""
    if config.kv_memory is not None:
        return Budget(config.kv_memory, "--kv-memory")
    if device.type != "cuda":
        return Budget(min(CPU_KV_BYTES, available_memory() // 2), "half of what is free, at most 512 MiB")
    free, total = torch.cuda.mem_get_info(device)
    return cuda_budget(free, total, use, config.gpu_memory_utilization)


def cuda_budget(free: int, total: int, use: MemoryUse, utilization: float) -> Budget:
    """The share of a card that all of the engine may have, less weights, activations and graphs.

    Where other programs hold so much that this share is gone, half of what they leave: two engines on
    one card both run.

    Args:
        free: bytes free on the card, weights being loaded already.
        total: bytes of the card.
    """
    left = free - use.activations - use.graphs - CUDA_RESERVE
    share = int(free - (1 - utilization) * total) - use.activations - use.graphs
    others = total - free - use.weights
    if share >= left // 2 or others <= total // 20:
        return Budget(min(share, left), f"{utilization:.0%} of the card")
    note = (
        f"Other programs hold {size_text(others)} of the card's {size_text(total)}, "
        f"so the KV cache takes half of the {size_text(left)} that is left."
    )
    return Budget(left // 2, "half of what other programs leave", note)


def num_blocks(config: EngineConfig, shape: KVShape, block_size: int, budget: Budget, use: MemoryUse) -> int:
    """Blocks that were asked for, or as many as the budget gives, the null block included.

    Raises:
        OutOfMemory: not even one block for tokens fits, with the numbers.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    block_bytes = block_size * shape.bytes_per_token
    blocks = budget.num_bytes // block_bytes
    if blocks < FEWEST_BLOCKS:
        beside = ""
        if use.activations or use.graphs:
            beside = (
                f" Weights take {size_text(use.weights)}, the largest prefill {size_text(use.activations)}, "
                f"graphs {size_text(use.graphs)}."
            )
        raise OutOfMemory(
            f"The KV cache has {size_text(max(budget.num_bytes, 0))} ({budget.origin}), but two blocks of "
            f"{block_size} tokens need {size_text(FEWEST_BLOCKS * block_bytes)}.{beside}",
            "Raise --kv-memory or --gpu-memory-utilization, or lower --block-size, --max-batch or "
            "--prefill-chunk; or end other programs on the card.",
        )
    return blocks


def allocate(
    shape: KVShape,
    blocks: int,
    block_size: int,
    device: torch.device,
    again: Callable[[], int] | None = None,
    tries: int = 3,
) -> KVCache:
    """The cache of ``blocks`` blocks.

    Args:
        again: how many blocks fit now, where the number was derived: another engine that starts at the
            same moment may have taken what was free when it was counted.

    Raises:
        OutOfMemory: it does not fit.
    """
    for _ in range(tries):
        try:
            return KVCache(shape, blocks, block_size, device)
        except OutOfMemory:
            if again is None:
                raise
            if device.type == "cuda":
                torch.cuda.empty_cache()
            fewer = min(again(), blocks * 3 // 4)
            if fewer < FEWEST_BLOCKS:
                raise
            blocks = fewer
    return KVCache(shape, blocks, block_size, device)


def max_model_len(config: EngineConfig, model_limit: int, cache_tokens: int) -> int:
    """The longest sequence: what was asked for, or what model and cache allow.

    Raises:
        ConfigError: more was asked for than model or cache can do.
    """
    wanted = config.max_model_len
    if wanted is None:
        return min(model_limit, cache_tokens)
    if wanted > model_limit:
        raise ConfigError(
            f"max_model_len={wanted} is more than the model's own limit of {model_limit} tokens.",
            f"Use --max-model-len {model_limit} or less.",
        )
    if wanted > cache_tokens:
        raise ConfigError(
            f"max_model_len={wanted} does not fit the KV cache, which holds {cache_tokens} tokens.",
            "Lower --max-model-len, or raise --kv-memory or --num-blocks.",
        )
    return wanted
