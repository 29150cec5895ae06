"""What happened in the engine, as entries that a person can read. Plain data, no Textual.

All of it follows from step records, but for the reasons of endings, which ``Finished`` brings.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Literal, NamedTuple, get_args

from engine.records import EngineStatus, StepRecord
from tui_infer.history import StepHistory, decode_rows

CAPACITY = 20_000
LOOK_BACK = 1_000  # entries in which the end of a request is looked for
NOBODY = -1

EntryKind = Literal[
    "admitted",
    "hit",
    "allocated",
    "shared",
    "released",
    "evicted",
    "preempted",
    "captured",
    "graph",
    "eager",
    "mode",
    "cancelled",
    "finished",
]
KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
KIND_WORDS: Mapping[EntryKind, str] = {
    "hit": "prefix hit",
    "captured": "graph captured",
    "graph": "graph size",
    "eager": "fell back",
}


class Entry(NamedTuple):
    """One line of the log.

    ``number`` counts up for ever. ``request`` is -1 where no chat is concerned. ``tokens`` are what a prefix
    hit saved, or what an admission began to compute; ``other`` the request that a block is shared with;
    ``text`` a reason, a size or a mode.
    """

    number: int
    step: int
    t: float
    kind: EntryKind
    request: int = NOBODY
    blocks: tuple[int, ...] = ()
    tokens: int = 0
    other: int = NOBODY
    text: str = ""


class EventLog:
    """The last ``capacity`` entries, in the order of their steps.

    ``version`` grows with every change. Changes of one request in one step make one entry a kind.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything: a new engine."""
        self.version += 1
        self.step = -1
        self.block_size = 0
        self._entries: list[Entry] = []
        self._next = 0
        self._holders: dict[int, list[int]] = {}
        self._begun: set[int] = set()
        self._endings: dict[int, str] = {}
        self._mode = ""
        self._size: int | None = None
        self._reason = ""
        self._followed: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def lost(self) -> int:
        """Entries that were given up for newer ones."""
        return self._next - len(self._entries)

    # --- what the engine says ----------------------------------------------------------------------

    def ready(self, status: EngineStatus, t: float = 0.0) -> None:
        """An engine is there: start anew with the graphs that it captured."""
        self.clear()
        self.block_size = status.block_size
        if status.graph_sizes:
            took = f" in {status.graph_capture_s:.1f} s" if status.graph_capture_s is not None else ""
            self._add(0, t, "captured", text=f"{' '.join(map(str, status.graph_sizes))}{took}")
        for failure in status.graph_failures:
            self._add(0, t, "captured", text=f"not {failure.name}: {failure.reason}")

    def take(self, record: StepRecord) -> None:
        """Enter one step; steps of before are ignored."""
        if record.index <= self.step:
            return
        self.step = record.index
        self._take_blocks(record)
        for request in record.preempted:
            self._add(record.index, record.t, "preempted", request)
        self._take_mode(record)
        for request in record.finished:
            self._end(record.index, record.t, request)

    def ended(self, request: int, reason: str) -> None:
        """Why a request ended; its step may have been told already, or is to come."""
        for place in range(len(self._entries) - 1, max(-1, len(self._entries) - LOOK_BACK), -1):
            entry = self._entries[place]
            if entry.request == request and entry.kind == "finished":
                self._entries[place] = entry._replace(kind=_ending(reason), text=reason)
                self.version += 1
                return
        self._endings[request] = reason
        while len(self._endings) > LOOK_BACK:
            del self._endings[next(iter(self._endings))]

    def settled(self, step: int, t: float) -> None:
        """No step follows for now: what ended since the last one, by a cancel, is entered."""
        for request in [request for request in self._endings if request in self._begun]:
            self._end(step, t, request)

    def follow(self, history: StepHistory) -> None:
        """Take in what is new in a history; another history, or a cleared one, starts anew."""
        identity, seen = self._followed
        if identity != id(history) or history.appended < seen:
            block_size = self.block_size
            self.clear()
            self.block_size, seen = block_size, 0
        for record in history.last(history.appended - seen):
            self.take(record)
        self._followed = (id(history), history.appended)

    def _add(
        self,
        step: int,
        t: float,
        kind: EntryKind,
        request: int = NOBODY,
        blocks: tuple[int, ...] = (),
        *,
        tokens: int = 0,
        other: int = NOBODY,
        text: str = "",
    ) -> None:
        self._entries.append(Entry(self._next, step, t, kind, request, blocks, tokens, other, text))
        self._next += 1
        self.version += 1
        if len(self._entries) > self.capacity + self.capacity // 8:  # seldom, and many at once
            del self._entries[: len(self._entries) - self.capacity]

    def _end(self, step: int, t: float, request: int) -> None:
        reason = self._endings.pop(request, "")
        self._begun.discard(request)
        self._add(step, t, _ending(reason), request, text=reason)

    def _take_blocks(self, record: StepRecord) -> None:
        """Entries in the order of the changes; a request is admitted with its first block."""
        groups: dict[tuple[EntryKind, int, int], list[int]] = {}
        computed = {row.request: row.tokens for row in record.rows if row.prefill}
        for change in record.block_changes:
            block, request = change.block, change.request
            holders = self._holders.setdefault(block, [])
            if change.kind in ("allocate", "share", "copy"):
                if change.index == 0 and request not in self._begun:
                    self._begun.add(request)
                    groups[("admitted", request, NOBODY)] = []
                if change.kind == "share":
                    groups.setdefault(("hit", request, NOBODY), []).append(block)
                    if holders:
                        groups.setdefault(("shared", request, holders[0]), []).append(block)
                else:
                    groups.setdefault(("allocated", request, NOBODY), []).append(block)
                holders.append(request)
            elif change.kind == "release":
                if request in holders:
                    holders.remove(request)
                groups.setdefault(("released", request, NOBODY), []).append(block)
            elif change.kind == "evict":
                groups.setdefault(("evicted", NOBODY, NOBODY), []).append(block)
            if not holders:
                self._holders.pop(block, None)
        for (kind, request, other), blocks in groups.items():
            tokens = len(blocks) * self.block_size if kind == "hit" else 0
            if kind == "admitted":
                tokens = computed.get(request, 0)
            self._add(record.index, record.t, kind, request, tuple(blocks), tokens=tokens, other=other)

    def _take_mode(self, record: StepRecord) -> None:
        """What changed against the decode step before: the mode, the size, or the reason of eager steps."""
        if not decode_rows(record):
            return
        before, self._mode = self._mode, record.mode
        chosen = "chosen" in record.reason
        if record.mode == "graph":
            if before == "eager" and "chosen" in self._reason:
                self._add(record.index, record.t, "mode", text="graph")
            if record.graph_size != self._size or before != "graph":
                self._add(record.index, record.t, "graph", text=f"{record.graph_size}")
            self._size = record.graph_size
        elif before != "eager" or record.reason != self._reason:
            if chosen:
                self._add(record.index, record.t, "mode", text="eager")
            else:
                self._add(record.index, record.t, "eager", text=record.reason)
        self._reason = record.reason

    # --- what readers ask --------------------------------------------------------------------------

    def place_of(self, number: int) -> int:
        """Position of the first entry whose number is at least this one."""
        first = self._next - len(self._entries)
        return min(max(0, number - first), len(self._entries))

    def end(self, at: int | None) -> int:
        """One past the last entry of step ``at`` and of those before; None is now."""
        if at is None:
            return len(self._entries)
        low, high = 0, len(self._entries)
        while low < high:
            middle = (low + high) // 2
            if self._entries[middle].step <= at:
                low = middle + 1
            else:
                high = middle
        return low

    def back(self, end: int, wanted: Callable[[Entry], bool]) -> Iterator[Entry]:
        """Entries before position ``end`` that are wanted, newest first."""
        return (entry for entry in (self._entries[i] for i in range(end - 1, -1, -1)) if wanted(entry))

    def forward(self, start: int, end: int, wanted: Callable[[Entry], bool]) -> Iterator[Entry]:
        """Wanted entries from position ``start`` up to ``end``, oldest first."""
        return (entry for entry in islice(self._entries, start, end) if wanted(entry))

    def kinds(self, end: int) -> dict[EntryKind, int]:
        """How many entries of each kind there are before position ``end``."""
        counts: dict[EntryKind, int] = {}
        for entry in islice(self._entries, 0, end):
            counts[entry.kind] = counts.get(entry.kind, 0) + 1
        return counts


def _ending(reason: str) -> EntryKind:
    return "cancelled" if reason == "cancelled" else "finished"
