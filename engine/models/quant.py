"""Whether a model's weights stay in the bits of its GGUF file, and why not."""

import torch

from engine.config import EngineConfig
from engine.models.decoder import FAMILIES
from engine.models.gguf_weights import BROKEN, GGUFWeights
from engine.models.loader import read_config
from engine.models.memory import host_available_bytes
from engine.models.packed import kernel_missing
from engine.models.source import ModelSource

COPIES_SHARE = 8  # copies for many rows take at most this part of the memory that is free


def choose_packing(
    config: EngineConfig, source: ModelSource, device: torch.device, dtype: torch.dtype
) -> tuple[GGUFWeights | None, str]:
    """The file that weights are packed from; None with the reason, which is empty for other models.

    Raises:
        ModelError: the model's configuration cannot be read.
    """
    if source.gguf is None:
        return None, ""
    reason = _against(config, source, device)
    if not reason:
        model = read_config(source, config.trust_remote_code)
        heads = model.num_attention_heads
        kv_heads = getattr(model, "num_key_value_heads", None) or heads
        room = (host_available_bytes() or 0) // COPIES_SHARE
        try:
            return GGUFWeights(source.gguf, heads, kv_heads, dtype, room), ""
        except BROKEN as error:
            reason = f"{source.gguf.name} cannot be read ({type(error).__name__}: {error})"
    return None, f"Weights in {str(dtype).removeprefix('torch.')}, not in the file's own bits: {reason}."


def _against(config: EngineConfig, source: ModelSource, device: torch.device) -> str:
    if config.quant == "none":
        return "quant is none"
    if device.type != "cpu":
        return f"{device.type} has no packed kernel here"
    if config.dtype in ("float32", "float16"):
        return f"dtype is {config.dtype}"
    if config.model_impl == "transformers":
        return "transformers' modules run"
    model = read_config(source, config.trust_remote_code)
    architectures = getattr(model, "architectures", None) or [""]
    if architectures[0] not in FAMILIES:
        return f"{architectures[0] or model.model_type} does not run in the fused decoder"
    return kernel_missing()
