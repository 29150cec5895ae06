"""Any decoder-only transformers model over our paged cache, through its AttentionInterface.

The model's own modules run unchanged; only attention is ours. What a launch needs travels as a keyword
argument from ``forward`` down to every attention call, so nothing global has to be set or reset.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.attention.base import AttentionBackend, PagedBatch
from engine.errors import ModelError
from engine.kv_cache import KVCache

ATTENTION_NAME = "tui_infer_paged"


@dataclass(frozen=True, slots=True)
class Launch:
    """The cache, the back end and the batch of one forward pass."""

    backend: AttentionBackend
    cache: KVCache
    batch: PagedBatch


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    launch: Launch | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query [1, heads, T, dim] in, [1, T, heads, dim] out."""
    if launch is None:
        raise ModelError(
            f"{type(module).__name__} does not hand keyword arguments to its attention.",
            "This architecture cannot be paged.",
        )
    head_dim = query.shape[-1]
    out = launch.backend.attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        launch.batch,
        launch.cache,
        scale=head_dim**-0.5 if scaling is None else scaling,
        window=sliding_window,
    )
    return out.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)


class TransformersModel:
    """A loaded transformers model behind the engine's model interface.

    Args:
        module: a ``*ForCausalLM`` loaded with ``attn_implementation=ATTENTION_NAME``.
        backend: paged attention.
    """

    impl = "transformers"

    def __init__(self, module: nn.Module, backend: AttentionBackend) -> None:
        self.module = module
        self.backend = backend

    def forward(
        self, input_ids: Tensor, positions: Tensor, batch: PagedBatch, cache: KVCache, rows: Tensor | None
    ) -> Tensor:
        """Compute packed tokens and return the logits of the chosen ones.

        Args:
            input_ids: [T] int64, the new tokens of all sequences one after another.
            positions: [T] int64, each token's place in its own sequence.
            rows: [n] int64, indexes into T whose logits are wanted; None wants all.

        Returns:
            [n, vocab] logits in the model's dtype.
        """
        output = self.module(
            input_ids=input_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=0 if rows is None else rows,
            launch=Launch(self.backend, cache, batch),
        )
        logits: Tensor = output.logits
        return logits[0]
