"""Which models the paged engine can run, told from the configuration before any weight is read."""

from pathlib import Path
from typing import Any

from engine.errors import ModelError

RUNNABLE_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
OTHER_MODEL = (
    "Choose a decoder-only model with ordinary attention, such as Llama, Mistral, Qwen2, Qwen3 or SmolLM2."
)


def model_class(config: Any, name: str, code: Path | None = None) -> Any:
    """The transformers class of a configuration, once every check is passed.

    Args:
        code: folder whose own Python code may be run, for models that are not part of transformers.

    Raises:
        ModelError: naming the architecture and the feature that the engine lacks.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    architecture = (getattr(config, "architectures", None) or [config.model_type])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise _unsupported(name, architecture, "it is an encoder-decoder")
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM") if code else None
    if own is None and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _unsupported(
            name, architecture, "it does not generate text token by token (no causal language model)"
        )
    if config.get_text_config() is not config:
        raise _unsupported(name, architecture, "it also takes images or sound")
    reason = unsupported_feature(config)
    if reason:
        raise _unsupported(name, architecture, reason)
    found = _own_class(own, code) if own and code else MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not getattr(found, "_supports_attention_backend", False):
        raise _unsupported(
            name, architecture, "its attention code in transformers cannot be replaced by the paged one"
        )
    return found


def unsupported_feature(config: Any) -> str:
    """Why the engine cannot run this configuration; empty when it can.

    Sliding windows are fine where the layer says so. Anything that changes the scores (sinks, soft caps,
    position biases) or keeps other state than keys and values would give wrong text, so it is refused.
    """
    quantised = getattr(config, "quantization_config", None)
    if quantised:
        method = (
            quantised.get("quant_method")
            if isinstance(quantised, dict)
            else getattr(quantised, "quant_method", "")
        )
        return f"its weights are quantised ({method or 'unknown method'}); take the plain or a GGUF version"
    layers = [layer for layer in getattr(config, "layer_types", None) or () if layer not in RUNNABLE_LAYERS]
    if layers:
        return f"it has {layers[0].replace('_', ' ')} layers"
    if getattr(config, "kv_lora_rank", None):
        return "it has multi-head latent attention"
    if getattr(config, "attn_logit_softcapping", None):
        return "its attention scores are soft-capped"
    if config.model_type in ("gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash") or any(
        getattr(config, flag, None)
        for flag in ("add_swa_attention_sink_bias", "add_full_attention_sink_bias")
    ):
        return "it has attention sinks"
    if getattr(config, "alibi", None) or getattr(config, "position_embedding_type", None) == "alibi":
        return "it has ALiBi position biases"
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention looks ahead"
    if getattr(config, "num_kv_shared_layers", None):
        return "its layers share one key-value cache"
    if getattr(config, "mamba_d_state", None) or getattr(config, "ssm_cfg", None):
        return "it has state-space layers"
    return ""


def context_limit(config: Any) -> tuple[int, str]:
    """Longest sequence in tokens, and a note where it is less than the model's card says.

    ``dynamic`` and ``longrope`` change their frequencies with the longest sequence of a batch, which would
    make a chat's text depend on its neighbours; there the limit is the length below which they do not.
    """
    limit = int(
        getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2048
    )
    rope = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    if any(isinstance(value, dict) for value in rope.values()):  # one set of parameters a layer type
        return limit, ""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    factor = float(rope.get("factor") or 1.0)
    original = rope.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    if kind == "yarn":
        return max(limit, int((original or limit) * factor)), ""
    if kind == "linear":
        return int(limit * factor), ""
    if kind in ("dynamic", "longrope") and original and int(original) < limit:
        return int(original), (
            f"Context is held to {int(original)} of {limit} tokens: beyond it {kind} position scaling "
            "would make each answer depend on the other chats."
        )
    return limit, ""


def end_token_ids(tokenizer: Any, *configs: Any) -> set[int]:
    """Every id that ends an answer: the tokenizer's and those of the configurations, numbers or lists."""
    found: set[int] = set()
    for value in [tokenizer.eos_token_id, *(getattr(config, "eos_token_id", None) for config in configs)]:
        if value is not None:
            found.update(value if isinstance(value, list | tuple) else (value,))
    return {int(value) for value in found}


def _own_class(reference: str, folder: Path) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    return get_class_from_dynamic_module(reference, str(folder), local_files_only=True)


def _unsupported(name: str, architecture: str, reason: str) -> ModelError:
    return ModelError(f"{name} ({architecture}) cannot be run here: {reason}.", OTHER_MODEL)
