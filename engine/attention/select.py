"""Which paged attention back end runs, and why the others do not."""

from dataclasses import dataclass

import torch

from engine.attention.base import AttentionBackend
from engine.attention.sdpa import SdpaAttention
from engine.errors import ConfigError
from engine.records import PassedOver

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model and its user ask of a back end; ``block_size`` is None where nobody asked for one."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int | None = None
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The back end of an engine, with the reasons that its status shows."""

    backend: AttentionBackend
    block_size: int
    reason: str
    passed_over: tuple[PassedOver, ...]


def choose_attention(
    wanted: str, device: torch.device, needs: AttentionNeeds | None = None
) -> AttentionChoice:
    """Pick the back end for a device.

    Args:
        wanted: ``auto`` or the name of a back end.

    Raises:
        ConfigError: the named back end cannot run here.
    """
    passed_over = tuple(PassedOver(name, why) for name, why in unavailable().items())
    if wanted in ("auto", SdpaAttention.name):
        reason = "asked for" if wanted == SdpaAttention.name else f"the back end that runs on {device.type}"
        block_size = (needs and needs.block_size) or DEFAULT_BLOCK_SIZE
        return AttentionChoice(SdpaAttention(), block_size, reason, passed_over)
    why = unavailable()[wanted]
    raise ConfigError(f"attention={wanted!r} cannot run: {why}.", "Use --attention auto or sdpa.")


def unavailable() -> dict[str, str]:
    """Back ends that can be named but not run, with the reason."""
    why = "not in this version, which has SDPA only, on every device"
    return {"flash": why, "triton": why}
