"""Whether a model fits into memory, told before it is loaded. Torch-free."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.models.memory import host_available_bytes, size_text
from engine.records import EngineStatus
from tui_infer.model_files import ModelFacts
from tui_infer.nvml import GpuReading

LEAST_TOKENS = 2048  # of context, which a chat needs at least to be of use
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a model can have; None where nothing says so. ``number_bytes`` is what one number takes."""

    free: int | None
    device: str
    number_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes of the weights and of the least KV cache, None where the model's files do not say."""

    weights: int | None
    kv: int | None
    tokens: int
    room: Room

    @property
    def need(self) -> int | None:
        return None if self.weights is None else self.weights + (self.kv or 0)

    @property
    def fits(self) -> bool | None:
        """None where it is not known."""
        return None if self.need is None or self.room.free is None else self.need <= self.room.free

    def words(self) -> str:
        """``Needs 257 MiB for weights and 45 MiB for 2,048 tokens; cpu has 8.1 GiB free.``"""
        free = "how much is free is unknown"
        if self.room.free is not None:
            free = f"{self.room.device} has {size_text(self.room.free)} free"
        if self.weights is None:
            return f"How much it needs is known once it is here; {free}."
        kv = f" and {size_text(self.kv)} for {self.tokens:,} tokens" if self.kv is not None else ""
        return f"Needs {size_text(self.weights)} for weights{kv}; {free}."


def fit(facts: ModelFacts, room: Room) -> Fit:
    """Weights in the engine's number format, and keys and values of ``LEAST_TOKENS`` or its whole context."""
    tokens = min(LEAST_TOKENS, facts.context or LEAST_TOKENS)
    weights = None if facts.parameters is None else facts.parameters * room.number_bytes
    kv = None if facts.kv_numbers is None else facts.kv_numbers * tokens * room.number_bytes
    return Fit(weights, kv, tokens, room)


def room_for(config: EngineConfig, status: EngineStatus | None, gpu: GpuReading) -> Room:
    """What is free once the engine of ``status``, which is to be replaced, is gone."""
    dtype = config.dtype if config.dtype != "auto" else status.dtype if status is not None else ""
    number = _BYTES.get(dtype, 2)
    if status is None or not status.device.startswith("cuda"):
        free = host_available_bytes()
        held = _anonymous_bytes(status.pid) if status is not None else 0
        return Room(
            None if free is None else free + held, status.device if status else "this machine", number
        )
    if gpu.memory_total is None or gpu.memory_used is None:
        return Room(None, status.device, number)
    held = status.weight_bytes + status.kv_bytes + status.graph_bytes + status.activation_bytes
    most = int(gpu.memory_total * config.gpu_memory_utilization)
    return Room(min(gpu.memory_total - gpu.memory_used + held, most), status.device, number)


def _anonymous_bytes(pid: int) -> int:
    """What a process would give back at its end; files that it maps count as free already."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
