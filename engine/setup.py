"""Builds an engine's parts in order: device, model, attention, memory, blocks, scheduler, runner."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from engine.attention.select import DEFAULT_BLOCK_SIZE, choose_attention
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device import DeviceInfo, available_memory, find_device, find_dtype
from engine.errors import ConfigError, OutOfMemory
from engine.graphs import GraphPool, graphs_unavailable
from engine.kv_cache import KVCache, KVShape
from engine.malloc import keep_temporaries
from engine.models.loader import Loaded, load, resolve
from engine.models.transformers import ATTENTION_NAME, TransformersModel, kv_shape
from engine.records import EngineStatus, Progress
from engine.runner import ModelRunner
from engine.scheduler import Scheduler

# What the cache takes on a machine without a GPU when nothing was asked for.
CPU_KV_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Parts:
    """What ``build`` made."""

    tokenizer: Any
    eos_token_ids: frozenset[int]
    stop: tuple[str, ...]
    pool: BlockPool
    scheduler: Scheduler
    runner: ModelRunner
    graphs: GraphPool
    status: EngineStatus


def build(config: EngineConfig, progress: Callable[[Progress], None]) -> Parts:
    """Load the model and everything around it.

    Raises:
        ConfigError, ModelError, OutOfMemory: see ``Engine``.
    """
    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    info = find_device(config.device)
    if info.device.type == "cpu":
        keep_temporaries()
    dtype = find_dtype(config.dtype, info.device)
    attention = choose_attention(config.attention, info.device)
    if config.model_impl == "decoder":
        raise ConfigError("model_impl='decoder' is not part of this version.", "Use auto or transformers.")
    source = resolve(config.model, config.revision, progress)
    loaded = load(
        source,
        dtype=dtype,
        device=info.device,
        trust_remote_code=config.trust_remote_code,
        progress=progress,
        attn_implementation=ATTENTION_NAME,
    )
    progress(Progress("cache", "laying out the KV cache"))
    block_size = config.block_size or DEFAULT_BLOCK_SIZE
    shape = kv_shape(loaded.config, dtype)
    num_blocks = _num_blocks(config, shape, block_size, info)
    max_model_len = _max_model_len(config, loaded.max_model_len, (num_blocks - 1) * block_size)
    cache = KVCache(shape, num_blocks, block_size, info.device)
    pool = BlockPool(
        num_blocks,
        block_size,
        prefix_cache=config.prefix_cache,
        identity={"model": str(source.path), "dtype": str(dtype)},
    )
    scheduler = Scheduler(
        pool, max_batch=config.max_batch, prefill_chunk=config.prefill_chunk, max_model_len=max_model_len
    )
    graphs = GraphPool((), graphs_unavailable(info.device), "eager" if config.mode == "eager" else "graph")
    if config.mode == "graph" and graphs.unavailable:
        raise ConfigError(f"mode='graph' cannot run: {graphs.unavailable}.", "Use --mode auto or eager.")
    vocab_size = _vocab_size(loaded)
    runner = ModelRunner(TransformersModel(loaded.model, attention.backend), cache, graphs, vocab_size)
    progress(Progress("warm-up", "first forward pass"))
    runner.warm_up()
    status = EngineStatus(
        model=config.model,
        model_name=source.name,
        model_path=str(source.path),
        architecture=type(loaded.model).__name__,
        model_impl=TransformersModel.impl,
        device=str(info.device),
        device_name=info.name,
        device_uuid=info.uuid,
        dtype=str(dtype).removeprefix("torch."),
        attention=attention.backend.name,
        attention_reason=attention.reason,
        attention_passed_over=attention.passed_over,
        mode=graphs.effective_mode,
        mode_reason=graphs.unavailable,
        graph_sizes=graphs.sizes,
        block_size=block_size,
        num_blocks=num_blocks,
        block_bytes=block_size * shape.bytes_per_token,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=cache.num_bytes,
        graph_bytes=0,
        max_batch=config.max_batch,
        max_model_len=scheduler.max_model_len,
        prefill_chunk=config.prefill_chunk,
        prefix_cache=config.prefix_cache,
        vocab_size=vocab_size,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),  # a str subclass, which msgspec does not encode
        transformers=transformers.__version__,
        pid=os.getpid(),
        load_s=time.perf_counter() - began,
        notes=loaded.notes,
    )
    return Parts(loaded.tokenizer, loaded.eos_token_ids, loaded.stop, pool, scheduler, runner, graphs, status)


def _num_blocks(config: EngineConfig, shape: KVShape, block_size: int, info: DeviceInfo) -> int:
    """Blocks that were asked for, or as many as the memory gives, the null block included."""
    block_bytes = block_size * shape.bytes_per_token
    if config.num_blocks is not None:
        return config.num_blocks
    budget = config.kv_memory
    if budget is None:
        if info.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(info.device)
            budget = int(free - (1 - config.gpu_memory_utilization) * total)
        else:
            budget = min(CPU_KV_BYTES, available_memory() // 2)
    blocks = budget // block_bytes
    if blocks < 2:
        raise OutOfMemory(
            f"The KV cache has {max(budget, 0) / 2**20:.1f} MiB, but two blocks of {block_size} tokens need "
            f"{2 * block_bytes / 2**20:.1f} MiB.",
            "Raise --kv-memory, or lower --block-size.",
        )
    return blocks


def _max_model_len(config: EngineConfig, model_limit: int, cache_tokens: int) -> int:
    """The longest sequence: what was asked for, or what model and cache allow."""
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


def _vocab_size(loaded: Loaded) -> int:
    """Width of the logits; the tokenizer may know fewer tokens."""
    text = loaded.config.get_text_config(decoder=True)
    return int(text.vocab_size)
