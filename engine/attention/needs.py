"""What a model and its user ask of a paged attention back end."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """Shapes of one attention layer, and what they are stored in.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: numbers a head.
        dtype: of queries, keys and values.
        block_size: tokens a block; None where nobody asked for a size.
        windowed: some layer sees only its latest tokens.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int | None = None
    windowed: bool = False
