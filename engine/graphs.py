"""Dispatch of decode batches: the only place that decides between graph and eager, with the reason."""

from dataclasses import dataclass

import torch

from engine.records import StepMode


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A decision: ``size`` is the padded batch of the graph to replay, None runs eager for ``reason``."""

    size: int | None
    reason: str

    @property
    def mode(self) -> StepMode:
        return "eager" if self.size is None else "graph"


class GraphPool:
    """Captured decode graphs by padded batch size.

    Args:
        sizes: batch sizes for which a graph was captured, ascending.
        unavailable: why no graph can be captured here; empty when they can.
        mode: what the user asked for.
    """

    def __init__(self, sizes: tuple[int, ...], unavailable: str, mode: StepMode) -> None:
        self.sizes = sizes
        self.unavailable = unavailable
        self.mode: StepMode = mode

    @property
    def effective_mode(self) -> StepMode:
        """``eager`` where graphs were asked for but cannot be had."""
        return "eager" if self.unavailable else self.mode

    def dispatch(self, batch: int) -> Dispatch:
        """Decide how a decode batch of ``batch`` rows runs."""
        if self.unavailable:
            return Dispatch(None, self.unavailable)
        if self.mode == "eager":
            return Dispatch(None, "eager mode was chosen")
        for size in self.sizes:
            if size >= batch:
                return Dispatch(size, "")
        largest = self.sizes[-1] if self.sizes else 0
        return Dispatch(None, f"batch {batch} is larger than the largest graph, {largest}")


def graphs_unavailable(device: torch.device) -> str:
    """Why CUDA graphs cannot be captured on this device; empty when they can."""
    if device.type != "cuda":
        return f"no CUDA graphs on {device.type}"
    return "this version does not capture graphs yet"
