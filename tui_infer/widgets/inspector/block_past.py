"""What happened to one block, read from the kept step records."""

from dataclasses import dataclass

from engine.records import BlockChangeKind
from tui_infer.history import StepHistory

KEPT = 400  # events of one block; a busy block changes hands every few steps


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change of the block in step ``step``; ``request`` and ``index`` are -1 where nobody is concerned."""

    step: int
    kind: BlockChangeKind
    request: int
    index: int


class BlockPast:
    """Follows one block: the records are read once, then only new ones."""

    def __init__(self) -> None:
        self.events: list[BlockEvent] = []
        self._history: StepHistory | None = None
        self._block = -1
        self._seen = -1

    def update(self, history: StepHistory, block: int) -> None:
        """Bring ``events``, oldest first, up to the latest record of ``history``."""
        latest = history.latest
        last = latest.index if latest is not None else -1
        if history is not self._history or block != self._block or last < self._seen:
            self._history, self._block, self._seen, self.events = history, block, -1, []
        if last == self._seen:
            return
        fresh: list[BlockEvent] = []
        for position in range(len(history) - 1, -1, -1):
            record = history[position]
            if record.index <= self._seen or len(fresh) >= KEPT:
                break
            for change in reversed(record.block_changes):
                if change.block == block:
                    fresh.append(BlockEvent(record.index, change.kind, change.request, change.index))
        self.events = (self.events + fresh[::-1])[-KEPT:]
        self._seen = last

    def last_holder(self) -> tuple[int, int] | None:
        """``(request, logical index)`` of whoever held the block last, as far as records tell."""
        for event in reversed(self.events):
            if event.request >= 0 and event.index >= 0:
                return event.request, event.index
        return None
