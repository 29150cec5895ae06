"""In which bits a model's weights are kept on a CPU, what computes with them, and why not otherwise."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.decoder import FAMILIES
from engine.models.gguf_weights import BROKEN, GGUFWeights
from engine.models.loader import read_config
from engine.models.memory import host_available_bytes
from engine.models.native_path import native_unfit
from engine.models.packed import kernel_missing
from engine.models.quantised import Bits, QuantisedWeights
from engine.models.source import ModelSource, no_progress
from engine.models.support import model_class
from engine.models.weights import Shards
from engine.native.library import compiles_first, native_missing
from engine.records import Progress

COPIES_SHARE = 8  # copies for many rows take at most this part of the memory that is free
ROUNDED: dict[str, Bits] = {"int4": 4, "int8": 8}

Weights = GGUFWeights | QuantisedWeights


def choose_packing(
    config: EngineConfig,
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[Progress], None] = no_progress,
) -> tuple[Weights | None, str]:
    """Where quantised weights come from; None with the reason, which is empty where nobody expects them.

    Args:
        dtype: in which the engine would compute; the packing has its own, see its ``dtype``.

    Raises:
        ModelError: the model's configuration cannot be read.
        ConfigError: bits were asked for that cannot be had.
    """
    bits = ROUNDED.get(config.quant)
    if source.gguf is None and bits is None:
        return None, ""
    reason = _against(config, source, device)
    if not reason:
        model = read_config(source, config.trust_remote_code)
        untiled = _not_native(model, progress)
        reason = kernel_missing() if untiled else ""
        if not reason and bits is not None:
            own = dtype if untiled else torch.bfloat16
            return QuantisedWeights(bits, _shapes(source, model), own, tiled=not untiled, untiled=untiled), ""
        if not reason and source.gguf is not None:
            try:
                return _own_bits(source, model, dtype, untiled), ""
            except BROKEN as error:
                reason = f"{source.gguf.name} cannot be read ({type(error).__name__}: {error})"
    if bits is not None:
        other = ", or leave out --model-impl transformers" if config.model_impl == "transformers" else ""
        raise ConfigError(f"quant={config.quant!r} cannot be had: {reason}.", f"Use --quant none{other}.")
    return None, f"Weights in {str(dtype).removeprefix('torch.')}, not in the file's own bits: {reason}."


def _own_bits(source: ModelSource, model: Any, dtype: torch.dtype, untiled: str) -> GGUFWeights:
    assert source.gguf is not None
    heads = model.num_attention_heads
    kv_heads = getattr(model, "num_key_value_heads", None) or heads
    if not untiled:
        return GGUFWeights(source.gguf, heads, kv_heads, torch.bfloat16, 0, tiled=True)
    room = (host_available_bytes() or 0) // COPIES_SHARE
    return GGUFWeights(source.gguf, heads, kv_heads, dtype, room, untiled=untiled)


def _not_native(model: Any, progress: Callable[[Progress], None]) -> str:
    """Why the C decoder does not run a model here; empty where it does."""
    reason = native_unfit(model)
    if not reason and compiles_first():
        progress(Progress("compiling", "the decoder for this processor, once"))
    return reason or native_missing()


def _shapes(source: ModelSource, model: Any) -> Mapping[str, tuple[int, ...]]:
    """The shape of every weight, by name."""
    if source.shape is None:
        return Shards(source.path).shapes
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(model)
    return {name: tuple(weight.shape) for name, weight in module.named_parameters()}


def _against(config: EngineConfig, source: ModelSource, device: torch.device) -> str:
    """Why weights stay as they are, whatever the machine."""
    if config.quant == "none":
        return "quant is none"
    if device.type != "cpu":
        return f"{device.type} has no kernel for them here"
    if config.dtype in ("float32", "float16"):
        return f"dtype is {config.dtype}"
    if config.model_impl == "transformers":
        return "transformers' modules run"
    architecture = _architecture(source, read_config(source, config.trust_remote_code))
    return "" if architecture in FAMILIES else f"{architecture} does not run in the fused decoder"


def _architecture(source: ModelSource, model: Any) -> str:
    """The class of a model; shapes name none in their configuration."""
    if source.shape is not None:
        return model_class(model, source.name).__name__
    return (getattr(model, "architectures", None) or [model.model_type])[0]
