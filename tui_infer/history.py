"""The last steps of the engine and what they add up to. Plain data: no widgets, no clock of its own."""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from engine.records import StepMode, StepRecord

CAPACITY = 20_000
WINDOW_STEPS = 512
RATE_WINDOW_S = 2.0
SHARE_STEPS = 128
SAMPLES_PER_BATCH = 257
MIN_SAMPLES_FOR_RATIO = 5


class Percentiles(NamedTuple):
    """Milliseconds of the last ``steps`` steps that decoded."""

    p50: float
    p95: float
    p99: float
    steps: int


class TimeShares(NamedTuple):
    """Mean milliseconds a step over the rate window; ``device`` is None where no step measured it."""

    total: float
    schedule: float
    launch: float
    device: float | None
    read: float
    steps: int


class Ratio(NamedTuple):
    """Median milliseconds of pure decode steps with ``batch`` rows, graph against eager."""

    batch: int
    graph_ms: float
    eager_ms: float

    @property
    def speedup(self) -> float:
        return self.eager_ms / self.graph_ms if self.graph_ms else 0.0


class SortedWindow:
    """The last ``size`` values, kept sorted: percentiles without sorting again."""

    __slots__ = ("_order", "_size", "_sorted", "added")

    def __init__(self, size: int, values: Iterable[float] = (), added: int = 0) -> None:
        self._size = size
        self._order: deque[float] = deque(values)
        self._sorted: list[float] = sorted(self._order)
        self.added = added

    def __iter__(self) -> Iterator[float]:
        """The values, oldest first."""
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._order) == self._size:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self.added += 1
        self._order.append(value)
        insort(self._sorted, value)

    def percentile(self, percent: float) -> float:
        """Linear interpolation between closest ranks, as numpy does. Needs at least one value."""
        position = (len(self._sorted) - 1) * percent / 100
        below = int(position)
        above = min(below + 1, len(self._sorted) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low + (high - low) * (position - below)


class StepHistory:
    """Ring buffer of StepRecords with aggregates that cost the same at step 100 and at step 100,000.

    Percentiles look at the last ``WINDOW_STEPS`` steps that decoded, rates and time shares at the last
    ``RATE_WINDOW_S`` seconds of steps; graph hits and eager reasons count since ``clear``.
    ``version`` grows with every change, so that a reader can tell that it has seen everything.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} is too small; it must be at least 1.")
        self.capacity = capacity
        self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything: a new engine starts to count at step 0."""
        self.version += 1
        self.dropped = 0
        self.appended = 0
        self.decode_batch = 0  # rows of the newest decode batch
        self.graph_hits: Counter[int] = Counter()
        self.eager_reasons: Counter[str] = Counter()
        self._records: list[StepRecord] = []
        self._start = 0
        self._decode_ms = SortedWindow(WINDOW_STEPS)
        self._by_batch: dict[tuple[StepMode, int], SortedWindow] = {}
        self._recent: deque[StepRecord] = deque()
        self._recent_tokens = 0
        self._recent_prefill = 0

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, position: int) -> StepRecord:
        """Record by age: 0 is the oldest kept, -1 the latest."""
        size = len(self._records)
        if not -size <= position < size:
            raise IndexError(position)
        return self._records[(self._start + position) % size]

    def __iter__(self) -> Iterator[StepRecord]:
        yield from self._records[self._start :]
        yield from self._records[: self._start]

    @property
    def latest(self) -> StepRecord | None:
        return self[-1] if len(self) else None

    def last(self, count: int) -> list[StepRecord]:
        """The newest ``count`` records, oldest first."""
        size = len(self)
        return [self[position] for position in range(size - min(count, size), size)]

    def first_since(self, t: float) -> int:
        """Index of the first kept step that started at or after ``t``; one past the latest if none did."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle].t < t:
                low = middle + 1
            else:
                high = middle
        if low < len(self):
            return self[low].index
        return self[-1].index + 1 if len(self) else 0

    def extend(self, records: Iterable[StepRecord], dropped: int = 0) -> None:
        """Add a telemetry batch; ``dropped`` steps before it never arrived."""
        self.dropped += dropped
        for record in records:
            self.append(record)

    def append(self, record: StepRecord) -> None:
        """Add one step; the oldest goes when the ring is full."""
        self.version += 1
        self.appended += 1
        if len(self._records) < self.capacity:
            self._records.append(record)
        else:
            self._records[self._start] = record
            self._start = (self._start + 1) % self.capacity
        self._count(record)
        self._keep_recent(record)

    def _count(self, record: StepRecord) -> None:
        if record.graph_size is not None:
            self.graph_hits[record.graph_size] += 1
        elif record.reason:
            self.eager_reasons[record.reason] += 1
        rows = decode_rows(record)
        if not rows:  # a prefill, or a step that was launched ahead for answers that had ended
            return
        self._decode_ms.add(record.ms.total)
        self.decode_batch = rows
        if record.kind == "decode":
            key = (record.mode, self.decode_batch)
            window = self._by_batch.get(key)
            if window is None:
                window = self._by_batch[key] = SortedWindow(SAMPLES_PER_BATCH)
            window.add(record.ms.total)

    def _keep_recent(self, record: StepRecord) -> None:
        recent = self._recent
        recent.append(record)
        self._recent_tokens += record.decode_tokens
        self._recent_prefill += record.prefill_tokens
        while len(recent) > 1 and recent[0].t < record.t - RATE_WINDOW_S:
            gone = recent.popleft()
            self._recent_tokens -= gone.decode_tokens
            self._recent_prefill -= gone.prefill_tokens

    def percentiles(self) -> Percentiles | None:
        """p50, p95 and p99 of the steps that decoded; None before the first one."""
        window = self._decode_ms
        if not len(window):
            return None
        return Percentiles(window.percentile(50), window.percentile(95), window.percentile(99), len(window))

    def tokens_per_s(self) -> float | None:
        """Decoded tokens over the time from the start of the window's first step to the end of its last.

        None before anything was decoded. Prefill time inside the window counts: this is what chats feel.
        """
        seconds = self._recent_seconds()
        return self._recent_tokens / seconds if self._recent_tokens and seconds > 0 else None

    def prefill_tokens_per_s(self) -> float | None:
        """Like ``tokens_per_s`` for prompt tokens; None when the window holds no prefill."""
        seconds = self._recent_seconds()
        return self._recent_prefill / seconds if self._recent_prefill and seconds > 0 else None

    def _recent_seconds(self) -> float:
        if not self._recent:
            return 0.0
        last = self._recent[-1]
        return last.t + last.ms.total / 1000 - self._recent[0].t

    def time_shares(self) -> TimeShares | None:
        """Where the time of the window's last decode steps went; of prefill steps if there are no others."""
        newest = list(islice(reversed(self._recent), SHARE_STEPS))
        steps = [record for record in newest if record.kind == "decode"] or newest
        if not steps:
            return None
        count = len(steps)
        total = schedule = launch = device = read = 0.0
        measured = 0
        for record in steps:
            ms = record.ms
            total += ms.total
            schedule += ms.schedule
            launch += ms.launch
            read += ms.read
            if ms.device is not None:
                device += ms.device
                measured += 1
        return TimeShares(
            total=total / count,
            schedule=schedule / count,
            launch=launch / count,
            device=device / measured if measured else None,
            read=read / count,
            steps=count,
        )

    def medians(self) -> Mapping[tuple[StepMode, int], float]:
        """Median milliseconds of pure decode steps for each (mode, batch size) seen."""
        return {key: window.percentile(50) for key, window in self._by_batch.items()}

    def ratio(self, batch: int) -> Ratio | None:
        """Graph against eager at this batch size; None until both were seen often enough."""
        graph, eager = self._by_batch.get(("graph", batch)), self._by_batch.get(("eager", batch))
        if graph is None or eager is None or min(len(graph), len(eager)) < MIN_SAMPLES_FOR_RATIO:
            return None
        return Ratio(batch, graph.percentile(50), eager.percentile(50))

    def nearest_ratio(self, wanted: int = 0) -> Ratio | None:
        """Graph against eager at ``wanted`` rows, by default those of the newest decode step, else at the
        nearest number that ran both ways.

        Chats come and go: without this a ratio just measured would vanish with the first answer that ends.
        """
        both = {batch for _, batch in self._by_batch if self.ratio(batch)}
        if not both:
            return None
        wanted = wanted or self.decode_batch
        return self.ratio(min(both, key=lambda batch: (abs(batch - wanted), batch)))


def decode_rows(record: StepRecord) -> int:
    """Rows of the step's decode batch, without padding."""
    if record.rows:
        return sum(not row.prefill for row in record.rows)
    return 0 if record.kind == "prefill" else record.active


def step_batch(record: StepRecord) -> tuple[int, int]:
    """(decode rows, prefill rows) of a step."""
    decode = decode_rows(record)
    return decode, record.active - decode
