"""Builds an engine's parts in order: device, model, attention, memory, graphs, blocks, scheduler, runner."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch

from engine.attention.select import AttentionChoice, AttentionNeeds, choose_attention
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device import find_device, find_dtype
from engine.errors import ConfigError
from engine.graphs import GraphPool, graph_sizes, graphs_unavailable
from engine.kv_budget import max_model_len
from engine.kv_cache import kv_shape
from engine.layout import Layout
from engine.malloc import keep_temporaries
from engine.models.bits import weight_bits
from engine.models.choice import choose_model
from engine.models.decoder import FusedDecoder
from engine.models.kept_tiles import KeptTiles, kept
from engine.models.loader import facts_to_keep, load, read_config, resolve
from engine.models.quant import choose_packing
from engine.models.remembered import Remembered, recall, remember
from engine.models.skeleton import PlainConfig
from engine.models.source import ModelSource
from engine.models.support import model_class
from engine.models.weights import num_bytes
from engine.records import EngineStatus, PassedOver, Progress
from engine.runner import ModelRunner
from engine.scheduler import Scheduler


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
    source = resolve(config.model, config.revision, progress)
    known = _known(config, source)
    chosen, quant_note = choose_packing(config, source, info.device, dtype, progress)
    packing = None if chosen is None else kept(chosen, source, config.quant)
    dtype = dtype if packing is None else packing.dtype
    known = known if known is not None and known.facts.dtype == str(dtype) else None
    attention = _attention(config, source, info.device, dtype)
    unavailable = graphs_unavailable(
        info.device, attention.backend, graph_sizes(config.graph_sizes, config.max_batch)
    )
    if config.mode == "graph" and unavailable:
        raise ConfigError(f"mode='graph' cannot run: {unavailable}.", "Use --mode auto or eager.")
    loaded = load(
        source,
        packing=packing,
        dtype=dtype,
        device=info.device,
        trust_remote_code=config.trust_remote_code,
        progress=progress,
        attn_implementation=_attention_name(known),
        known=known,
    )
    facts = None if known or config.trust_remote_code else facts_to_keep(loaded, dtype)
    model = choose_model(config.model_impl, loaded, attention.backend, dtype, packing)
    if facts is not None and isinstance(model, FusedDecoder):
        remember(source, *facts)
    if isinstance(packing, KeptTiles) and isinstance(model, FusedDecoder):
        packing.keep()
    if packing is not None:  # which left the weights as they were stored
        fused = model if isinstance(model, FusedDecoder) else None
        quant_note = packing.note() if fused else ""
        loaded = replace(loaded, weight_bytes=fused.weight_bytes if fused else num_bytes(loaded.model))
    layout = Layout(config, loaded, model, attention, info.device, kv_shape(loaded.config, dtype))
    use = layout.measure(progress)
    progress(Progress("cache", "laying out the KV cache"))
    cache = layout.cache(use)
    longest = max_model_len(config, loaded.max_model_len, (cache.num_blocks - 1) * cache.block_size)
    pool = BlockPool(
        cache.num_blocks,
        cache.block_size,
        prefix_cache=config.prefix_cache,
        identity={"model": str(source.path), "dtype": str(dtype)},
    )
    scheduler = Scheduler(
        pool, max_batch=config.max_batch, prefill_chunk=config.prefill_chunk, max_model_len=longest
    )
    runner = layout.runner(cache, longest)
    progress(Progress("warm-up", "first forward pass"))
    runner.warm_up()
    capturing = time.perf_counter()
    runner.capture(progress)
    captured_s = time.perf_counter() - capturing
    graphs = runner.graphs
    if config.mode == "graph" and graphs.unavailable:
        raise ConfigError(f"mode='graph' cannot run: {graphs.unavailable}.", "Use --mode auto or eager.")
    in_c = isinstance(model, FusedDecoder) and model.native is not None
    status = EngineStatus(
        model=config.model,
        model_name=source.name,
        model_path=str(source.path),
        architecture=type(loaded.model).__name__,
        model_impl=model.impl,
        device=str(info.device),
        device_name=info.name,
        device_uuid=info.uuid,
        dtype=str(dtype).removeprefix("torch."),
        attention="native" if in_c else attention.backend.name,
        attention_reason="the C decoder has its own" if in_c else attention.reason,
        attention_passed_over=attention.passed_over,
        mode=graphs.effective_mode,
        mode_reason=graphs.unavailable,
        graph_sizes=graphs.sizes,
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
        block_bytes=cache.block_size * cache.shape.bytes_per_token,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=cache.num_bytes,
        graph_bytes=graphs.num_bytes,
        max_batch=config.max_batch,
        max_model_len=scheduler.max_model_len,
        prefill_chunk=config.prefill_chunk,
        prefix_cache=config.prefix_cache,
        vocab_size=runner.vocab_size,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),  # a str subclass, which msgspec does not encode
        transformers=version("transformers"),
        pid=os.getpid(),
        load_s=time.perf_counter() - began,
        notes=(*([quant_note] if quant_note else []), *loaded.notes, *layout.notes),
        activation_bytes=use.activations,
        graph_capture_s=captured_s if graphs.sizes else None,
        graph_failures=tuple(PassedOver(f"batch {size}", why) for size, why in graphs.failures.items()),
        weights=weight_bits(model),
    )
    return Parts(loaded.tokenizer, loaded.eos_token_ids, loaded.stop, pool, scheduler, runner, graphs, status)


def _known(config: EngineConfig, source: ModelSource) -> Remembered | None:
    """What an earlier start kept, for whatever dtype; its tokenizer is being read from here on."""
    if config.trust_remote_code or config.model_impl == "transformers":
        return None
    known = recall(source)
    if known is not None:
        known.begin()
    return known


def _attention_name(known: Remembered | None) -> str:
    """Of our attention among those of transformers, which has to be imported to know it."""
    if known is not None:
        return ""
    from engine.models.transformers import ATTENTION_NAME

    return ATTENTION_NAME


def _attention(
    config: EngineConfig, source: ModelSource, device: torch.device, dtype: torch.dtype
) -> AttentionChoice:
    """The back end, chosen before the weights are read: a refusal then costs no time."""
    model = read_config(source, config.trust_remote_code)
    if not isinstance(model, PlainConfig):  # whose model ran before
        model_class(model, source.name, source.path if config.trust_remote_code else None)
    shape = kv_shape(model, dtype)
    needs = AttentionNeeds(
        num_heads=model.num_attention_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
        block_size=config.block_size,
        windowed="sliding_attention" in (getattr(model, "layer_types", None) or ())
        or bool(getattr(model, "sliding_window", None)),
    )
    return choose_attention(config.attention, device, needs)
