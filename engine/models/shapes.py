"""Published geometries by name, for models with random weights: ``shape:qwen2.5-1.5b``. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ModelError

PREFIX = "shape:"
NOTE = "The weights are random: the speed is real and the text is not."


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder of the Llama family, as in the ``config.json`` that its authors published.

    Attributes:
        model_type: transformers' name of the architecture; it decides about biases and norms in attention.
        tied: the output layer is the embedding table.
        max_positions: longest sequence in tokens; of the chat version where base and chat differ.
        rope: position parameters beside ``rope_theta``; empty where they are the default ones.
    """

    model_type: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    rope_theta: float
    max_positions: int
    norm_eps: float
    rope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers the weights are, biases and norms included; a tied table counts once."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden * (2 * query + 2 * key) + 3 * self.hidden * self.intermediate + 2 * self.hidden
        layer += query + 2 * key if self.model_type == "qwen2" else 0  # biases of q, k and v
        layer += 2 * self.head_dim if self.model_type == "qwen3" else 0  # norms of q and k
        return self.layers * layer + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


# fmt: off
SHAPES: dict[str, Shape] = {
    "tiny": Shape("qwen2", 256, 512, 2, 4, 2, 64, 1024, True, 1e4, 4096, 1e-6),
    "smollm2-135m": Shape("llama", 576, 1536, 30, 9, 3, 64, 49152, True, 1e5, 8192, 1e-5),
    "qwen2.5-0.5b": Shape("qwen2", 896, 4864, 24, 14, 2, 64, 151936, True, 1e6, 32768, 1e-6),
    "qwen2.5-1.5b": Shape("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True, 1e6, 32768, 1e-6),
    "qwen2.5-7b": Shape("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False, 1e6, 32768, 1e-6),
    "qwen3-0.6b": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True, 1e6, 40960, 1e-6),
    "qwen3-8b": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False, 1e6, 40960, 1e-6),
    "llama3.2-1b": Shape(
        "llama", 2048, 8192, 16, 32, 8, 64, 128256, True, 5e5, 131072, 1e-5, _llama3_rope(32.0)
    ),
    "llama3.1-8b": Shape(
        "llama", 4096, 14336, 32, 32, 8, 128, 128256, False, 5e5, 131072, 1e-5, _llama3_rope(8.0)
    ),
}
# fmt: on


def is_shape(model: str) -> bool:
    """True for ``shape:NAME``, known or not."""
    return model.strip().lower().startswith(PREFIX)


def shape_name(model: str) -> str:
    """The name behind ``shape:``, in lower case.

    Raises:
        ModelError: no such shape, with those that there are.
    """
    name = model.strip().lower().removeprefix(PREFIX).strip()
    if name not in SHAPES:
        raise ModelError(f"There is no shape {name!r}.", f"The shapes are: {', '.join(SHAPES)}.")
    return name
