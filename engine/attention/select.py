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
    passed_over = tuple(PassedOver(name, why) for name, why in unavailable().items())
    if wanted in ("auto", SdpaAttention.name):
        reason = "asked for" if wanted == SdpaAttention.name else f"the back end that runs on {device.type}"
        return AttentionChoice(SdpaAttention(), reason, passed_over)
    why = unavailable()[wanted]
    raise ConfigError(f"attention={wanted!r} cannot run: {why}.", "Use --attention auto or sdpa.")


def unavailable() -> dict[str, str]:
    """Back ends that can be named but not run, with the reason."""
    why = "not in this version, which has SDPA only, on every device"
    return {"flash": why, "triton": why}
