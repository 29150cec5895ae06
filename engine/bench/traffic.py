"""The bytes that a decode step cannot avoid reading."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from engine.kv_cache import kv_shape
from engine.records import EngineStatus


@dataclass(frozen=True, slots=True)
class Traffic:
    """Reads of one decode step, in bytes.

    Counted are all weights once, whatever the batch, and the keys and values of every row's whole context
    (of the window, in layers that have one). Not counted are the embedding table, of which a row each is
    read, unless it is the output layer too; activations; logits; and what is written. It is a lower bound
    of what the memory moves, so a rate made from it is *useful* bandwidth: it can be compared with that
    of plain copies, and says how far a step is from the time in which its bytes could be read.

    Attributes:
        weights: bytes of the weights that are read each step; None for a mixture of experts, where that
            depends on the tokens.
        kv_per_token: bytes of keys and values of one token over all layers.
        windows: for each layer the tokens that it looks back, or None for all.
    """

    weights: int | None
    kv_per_token: int
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: Any, status: EngineStatus) -> "Traffic":
        """For a running engine and the transformers configuration of its model."""
        text = config.get_text_config(decoder=True)
        dtype: torch.dtype = getattr(torch, status.dtype)
        weights: int | None = status.weight_bytes
        if not text.tie_word_embeddings:
            weights = status.weight_bytes - text.vocab_size * text.hidden_size * dtype.itemsize
        if any(
            (getattr(text, name, None) or 0) > 1
            for name in ("num_experts", "num_local_experts", "n_routed_experts")
        ):
            weights = None
        return cls(weights, kv_shape(config, dtype).bytes_per_token, _windows(text))

    def step_bytes(self, contexts: Iterable[int]) -> int | None:
        """Bytes read by a step over rows with these contexts in tokens, the new token included."""
        if self.weights is None:
            return None
        layer = self.kv_per_token // len(self.windows)
        tokens = 0
        for context in contexts:
            tokens += sum(context if window is None else min(context, window) for window in self.windows)
        return self.weights + layer * tokens


def _windows(text: Any) -> tuple[int | None, ...]:
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:  # without a list, a window that is set holds in all layers, or has a switch
        windowed = window is not None and getattr(text, "use_sliding_window", True)
        kinds = ["sliding_attention" if windowed else "full_attention"] * text.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
