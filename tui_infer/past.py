"""Going back in time: every kept step's history and block map, rebuilt from checkpoints. Plain data.

What it costs: the records of ``history.CAPACITY`` steps (about 2 KB each with eight chats, 40 MB in all),
and checkpoints of the block map and of the aggregates, one every ``EVERY`` steps (further apart where the
pool is large), together never above ``CHECKPOINT_BYTES``. Records that left the ring stay until the oldest
checkpoint needs them no more. A look into the past holds on to what it shows: while it lasts, there may be
twice as many.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.records import BlockSnapshot, StepRecord
from tui_infer.history import StepHistory
from tui_infer.mirror import BlockMirror
from tui_infer.packed import PackedMirror
from tui_infer.past_history import PastHistory, Totals

EVERY = 256
CHECKPOINT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """History and mirror at one moment; good for every moment with ``start`` steps or more."""

    start: int
    mirror: PackedMirror
    totals: Totals

    @property
    def num_bytes(self) -> int:
        return self.mirror.num_bytes + self.totals.num_bytes


@dataclass(frozen=True, slots=True)
class Doubt:
    """From step number ``first`` (counted as received) up to ``end`` the block map may be wrong."""

    first: int
    end: int | None
    dropped: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The state after one past step.

    Attributes:
        record: the step that is shown.
        position: its place in the past, 0 is the oldest kept.
        history: all steps up to it, with their aggregates as they were.
        mirror: the block pool after it; belongs to this moment alone.
        notes: what must be said of it: another step was asked for, or its block map cannot be trusted.
    """

    record: StepRecord
    position: int
    history: StepHistory
    mirror: BlockMirror
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return self.record.index


class Timeline:
    """Feeds history and mirror, and keeps what is needed to go back to any of the history's steps."""

    def __init__(
        self, history: StepHistory, mirror: BlockMirror, *, limit_bytes: int = CHECKPOINT_BYTES
    ) -> None:
        self.history = history
        self.mirror = mirror
        self.limit_bytes = limit_bytes
        self.every = max(EVERY, mirror.num_blocks // 64)
        self.checkpoints: list[Checkpoint] = []
        self._doubts: list[Doubt] = []
        self._tail: deque[StepRecord] = deque()  # left the ring, and the oldest checkpoint starts before them
        self._mark(history.appended)

    # --- what comes in -------------------------------------------------------------------------

    def extend(self, records: Iterable[StepRecord], dropped: int = 0) -> None:
        """Add a telemetry batch to history and mirror; ``dropped`` steps before it never arrived."""
        history, mirror = self.history, self.mirror
        if dropped:
            history.extend((), dropped)
            if not self._in_doubt:
                self._doubts.append(Doubt(history.appended, None, dropped))
            self._mark(history.appended + 1)
        for record in records:
            if len(history) == history.capacity:
                self._tail.append(history[0])
            history.append(record)
            mirror.apply(record)
            if history.appended - self.checkpoints[-1].totals.appended >= self.every:
                self._mark(history.appended)

    def restore(self, snapshot: BlockSnapshot) -> None:
        """Take over the whole pool, which ends any doubt about it."""
        self.mirror.restore(snapshot)
        appended, latest = self.history.appended, self.history.latest
        if not self._in_doubt:
            self._mark(appended + 1)  # blocks changed between two steps
            return
        now = latest is not None and latest.index == snapshot.step
        doubt = self._doubts[-1]
        self._doubts[-1] = Doubt(doubt.first, appended - 1 if now else appended, doubt.dropped)
        self._mark(appended if now else appended + 1)

    @property
    def _in_doubt(self) -> bool:
        return bool(self._doubts) and self._doubts[-1].end is None

    # --- checkpoints ---------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """Memory of the checkpoints, about."""
        return sum(checkpoint.num_bytes for checkpoint in self.checkpoints)

    def _mark(self, start: int) -> None:
        before = self.checkpoints[-1].totals if self.checkpoints else None
        totals = Totals.of(self.history, before)
        self.checkpoints.append(Checkpoint(start, PackedMirror.of(self.mirror), totals))
        self._forget()

    def _forget(self) -> None:
        """Let go of what no kept step needs, then of every second checkpoint while they take too much."""
        oldest = self.history.appended - len(self.history)
        kept = self.checkpoints
        while len(kept) > 1 and kept[1].start <= oldest + 1:
            del kept[0]
        self._shrink(kept)
        spare = self.history.appended - len(self.history) - kept[0].totals.appended
        while len(self._tail) > max(0, spare):
            self._tail.popleft()
        while self._doubts and self._doubts[0].end is not None and self._doubts[0].end <= oldest:
            del self._doubts[0]

    def _shrink(self, kept: list[Checkpoint]) -> None:
        while self.num_bytes > self.limit_bytes and len(kept) > 2:
            # One that was made between two steps cannot be had again from the records around it.
            spare = [at for at in range(1, len(kept) - 1) if kept[at].start == kept[at].totals.appended]
            if spare:
                for at in reversed(spare[::2]):
                    del kept[at]
                self.every *= 2
            else:
                del kept[0]

    # --- looking back --------------------------------------------------------------------------

    def freeze(self) -> "Past":
        """All that can be seen now; it stays as it is while new steps come in."""
        records = [*self._tail, *self.history]
        first = self.history.appended - len(records)
        return Past(records, first, tuple(self.checkpoints), tuple(self._doubts))

    def moment(self, step: int) -> Moment | None:
        """The state after a step; see ``Past.moment``."""
        return self.freeze().moment(step)


class Past:
    """What was kept at one moment: records, oldest first, and any moment among them.

    Args:
        records: the kept steps.
        first: how many steps were received before the first of them.
        checkpoints: at least one that the first step needs, in order.
        doubts: where telemetry was lost.
    """

    def __init__(
        self,
        records: Sequence[StepRecord],
        first: int,
        checkpoints: Sequence[Checkpoint],
        doubts: Sequence[Doubt],
    ) -> None:
        self.records = records
        self._first = first
        self._checkpoints = checkpoints
        self._starts = [checkpoint.start for checkpoint in checkpoints]
        self._doubts = doubts
        self.oldest = max(0, self._starts[0] - first - 1)  # position of the first step that can be seen
        self._last: tuple[int, BlockMirror] | None = None

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def _bytes(self) -> tuple[float, int]:
        """Memory of one record on average, and of all checkpoints, about."""
        sample = self.records[:: max(1, len(self.records) // 200)]
        mean = sum(record_bytes(record) for record in sample) / max(1, len(sample))
        return mean, sum(mark.num_bytes for mark in self._checkpoints)

    @property
    def num_bytes(self) -> int:
        """Memory of records and checkpoints, about."""
        return self.bytes_with(0)

    def bytes_with(self, newer: int) -> int:
        """The same with so many steps that came since."""
        mean, checkpoints = self._bytes
        return round(mean * (len(self.records) + newer)) + checkpoints

    def position_of(self, step: int) -> int:
        """Position of the newest kept step that is not after ``step``; the oldest where all are."""
        found = bisect_right(self.records, step, key=lambda record: record.index) - 1
        return min(max(found, self.oldest), len(self.records) - 1)

    def moment(self, step: int) -> Moment | None:
        """The state after ``step``, or after the step next to it that is kept; None where there is none."""
        if self.oldest >= len(self.records):
            return None
        position = self.position_of(step)
        return self.at(position, self._about(step, self.records[position]))

    def at(self, position: int, notes: tuple[str, ...] = ()) -> Moment:
        """The state after the step at a position; positions beyond the ends mean the ends."""
        position = min(max(position, self.oldest), len(self.records) - 1)
        record, end = self.records[position], self._first + position + 1
        mark = self._checkpoints[bisect_right(self._starts, end) - 1]
        history = PastHistory(self.records, self._first, position + 1, mark.totals)
        mirror = self._mirror(mark, end)
        self._last = (end, mirror)
        doubt = self._doubt(end, mirror, record)
        return Moment(record, position, history, mirror, (*notes, doubt) if doubt else notes)

    def _mirror(self, mark: Checkpoint, end: int) -> BlockMirror:
        done, mirror = mark.totals.appended, None
        if self._last is not None and mark.start <= self._last[0] <= end:
            done, mirror = self._last[0], self._last[1].copy()
        if mirror is None:
            mirror = mark.mirror.unpack()
        for position in range(max(0, done - self._first), end - self._first):
            mirror.apply(self.records[position])
        return mirror

    # --- what cannot be known ------------------------------------------------------------------

    def _about(self, step: int, record: StepRecord) -> tuple[str, ...]:
        if step == record.index:
            return ()
        if step > self.records[-1].index:
            return (f"step {step:,} was not run yet",)
        if step < self.records[self.oldest].index:
            return (f"step {step:,} is no longer kept",)
        return (f"step {step:,} was not received",)

    def _doubt(self, end: int, mirror: BlockMirror, record: StepRecord) -> str:
        for doubt in self._doubts:
            if doubt.first < end and (doubt.end is None or end <= doubt.end):
                return f"{doubt.dropped:,} steps before were not received: the block map is not sure"
        if mirror.num_blocks and mirror.counts() != record.blocks:
            return "the block map does not add up here: telemetry was lost"
        return ""


def record_bytes(record: StepRecord) -> int:
    """Memory of one record with all that it holds, about."""
    return 620 + 112 * len(record.rows) + 104 * len(record.block_changes)
