"""Which implementation of a model runs: our fused decoder where it can, transformers' modules elsewhere."""

from typing import TYPE_CHECKING, TypeAlias

import torch

from engine.attention.base import AttentionBackend
from engine.errors import ConfigError
from engine.models.decoder import FusedDecoder, unfit
from engine.models.loader import Loaded
from engine.models.packed import Packing

if TYPE_CHECKING:
    from engine.models.transformers import TransformersModel

Model: TypeAlias = "FusedDecoder | TransformersModel"


def choose_model(
    wanted: str, loaded: Loaded, backend: AttentionBackend, dtype: torch.dtype, packing: Packing | None = None
) -> Model:
    """The model behind the engine's interface.

    Args:
        wanted: ``auto``, ``decoder`` or ``transformers``.
        dtype: in which the model computes.
        packing: what the fused decoder's weights are packed from.

    Raises:
        ConfigError: ``decoder`` was asked for and cannot run this model, with the reason.
    """
    if wanted != "transformers":
        reason = unfit(loaded.model)
        if not reason:
            return FusedDecoder(loaded.model, backend, packing)
        if wanted == "decoder":
            raise ConfigError(
                f"model_impl='decoder' cannot run this model: {reason}.", "Use --model-impl auto."
            )
    from engine.models.transformers import TransformersModel  # and transformers with it, which takes a second

    return TransformersModel(loaded.model.to(dtype), backend)
