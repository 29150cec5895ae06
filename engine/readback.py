"""Readback: sampled tokens on their way to the host, and the device's own time, one event a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_ROOM = 64  # tokens of a step; grows where one has more


class Readback:
    """Brings the tokens of a step to the host while the next step may run already.

    On CUDA there are two slots of pinned memory, each with its events, which steps take by turns: at most
    two steps are under way, so a slot was read before it is used again. Elsewhere tokens are kept as they
    are, and reading them waits for whatever computes them.
    """

    def __init__(self, device: torch.device) -> None:
        self._slots = [_CudaSlot() for _ in range(2)] if device.type == "cuda" else []

    def begin(self) -> "Slot":
        """The slot of a step that is about to be launched: device time counts from here."""
        if not self._slots:
            return Slot()
        slot = self._slots[0]
        self._slots.reverse()
        slot.begin()
        return slot


class Slot:
    """Tokens of one step, on a device without events."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def end(self, parts: Sequence[Tensor]) -> None:
        """All work of the step was launched, and these are its tokens, each [n] int64."""
        self._parts = [part.clone() for part in parts]  # the next step writes to the same place

    def read(self) -> tuple[list[list[int]], float | None]:
        """The tokens of every part, and the device's milliseconds (None: unknown); waits for them."""
        return [part.tolist() for part in self._parts], None


class _CudaSlot(Slot):
    def __init__(self) -> None:
        self._first = torch.cuda.Event(enable_timing=True)
        self._last = torch.cuda.Event(enable_timing=True)
        self._sizes: list[int] = []
        self._make_room(FIRST_ROOM)

    def begin(self) -> None:
        self._first.record()

    def end(self, parts: Sequence[Tensor]) -> None:
        self._sizes = [part.shape[0] for part in parts]
        if sum(self._sizes) > len(self._numbers):
            self._make_room(2 * sum(self._sizes))
        at = 0
        for part, size in zip(parts, self._sizes):
            self._place(at, size).copy_(part, non_blocking=True)
            at += size
        self._last.record()

    def read(self) -> tuple[list[list[int]], float | None]:
        self._last.synchronize()
        parts, at = [], 0
        for size in self._sizes:
            parts.append(self._numbers[at : at + size].tolist())
            at += size
        return parts, self._first.elapsed_time(self._last)

    def _make_room(self, tokens: int) -> None:
        self._host = torch.empty(tokens, dtype=torch.int64, pin_memory=True)
        self._numbers = self._host.numpy()
        self._places: dict[tuple[int, int], Tensor] = {}

    def _place(self, at: int, size: int) -> Tensor:
        """A part of the host's memory; made once, since most steps have the parts of the step before."""
        place = self._places.get((at, size))
        if place is None:
            place = self._places[at, size] = self._host[at : at + size]
        return place
