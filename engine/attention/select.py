"""Which paged attention back end runs, and why the others do not."""

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.attention.sdpa import SdpaAttention
from engine.errors import ConfigError
from engine.records import PassedOver

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The back end of an engine, with the reasons that its status shows."""

    backend: AttentionBackend
    reason: str
    passed_over: tuple[PassedOver, ...]


def choose_attention(wanted: str, device: torch.device) -> AttentionChoice:
    """Pick the back end for a device.

    Args:
        wanted: ``auto`` or the name of a back end.

    Raises:
        ConfigError: the named back end cannot run here.
    """
    passed_over = tuple(PassedOver(name, why) for name, why in unavailable(device).items())
    if wanted in ("auto", SdpaAttention.name):
        reason = "asked for" if wanted == SdpaAttention.name else f"the back end that runs on {device.type}"
        return AttentionChoice(SdpaAttention(), reason, passed_over)
    why = unavailable(device)[wanted]
    raise ConfigError(f"attention={wanted!r} cannot run: {why}.", "Use --attention auto or sdpa.")


def unavailable(device: torch.device) -> dict[str, str]:
    """Back ends that cannot run on this device, with the reason."""
    if device.type != "cuda":
        why = f"needs a CUDA device, this is {device.type}"
    else:
        why = "this version pages on CUDA through SDPA only"
    return {"flash": why, "triton": why}
