"""Probability mass counted in integers, so that sums do not depend on their order."""

import torch
from torch import Tensor

MASS_BITS = 40
WHOLE = 1 << MASS_BITS  # the mass of the most likely token


def mass_of(scaled: Tensor) -> Tensor:
    """Unnormalised probability in units of ``2**-MASS_BITS`` of the most likely token, int64.

    Args:
        scaled: float32 logits over temperature, with a maximum of 0.
    """
    return scaled.exp().mul_(2.0**MASS_BITS).to(torch.int64)


def wanted_mass(total: Tensor, top_p: Tensor) -> Tensor:
    """Mass that the kept tokens must reach, at least 1: int64 total, float64 top_p -> int64."""
    return (total.to(torch.float64) * top_p).ceil_().to(torch.int64).clamp_(min=1)
