"""Steps grouped into the columns of a chart, so that no spike is lost where steps outnumber cells."""

from collections import deque
from dataclasses import dataclass

from engine.records import StepRecord
from tui_infer.history import StepHistory

TARGET_SPAN_S = 15.0
MAX_COLUMNS = 256


@dataclass(slots=True)
class Column:
    """``steps`` consecutive steps from ``number * steps`` on. Times are milliseconds. ``peak_step`` is the
    slowest of them, of any kind.
    """

    number: int
    decode_steps: int = 0
    decode_ms: float = 0.0
    slowest_ms: float = 0.0
    graph_steps: int = 0
    prefill_ms: float = 0.0
    most_active: int = 0
    peak_ms: float = -1.0
    peak_step: int = 0

    @property
    def mean_ms(self) -> float:
        return self.decode_ms / self.decode_steps if self.decode_steps else 0.0

    @property
    def mode(self) -> str:
        """What most of the column's decode steps ran as."""
        return "graph" if self.graph_steps * 2 > self.decode_steps else "eager"

    def add(self, record: StepRecord) -> None:
        self.most_active = max(self.most_active, record.active)
        if record.ms.total > self.peak_ms:
            self.peak_ms, self.peak_step = record.ms.total, record.index
        if record.kind == "decode":
            self.decode_steps += 1
            self.decode_ms += record.ms.total
            self.slowest_ms = max(self.slowest_ms, record.ms.total)
            self.graph_steps += record.mode == "graph"
        else:
            self.prefill_ms = max(self.prefill_ms, record.ms.total)


class StepSeries:
    """Columns over a history, kept up to date at the cost of the new steps only.

    Columns are aligned to step numbers: a chart scrolls and never shimmers. The steps a column are a
    power of two: the chart shows all there is until that is ``TARGET_SPAN_S`` long, and one step a column
    while the engine is paused.
    """

    def __init__(self) -> None:
        self.steps_per_column = 1
        self._columns: deque[Column] = deque(maxlen=MAX_COLUMNS)
        self._history: StepHistory | None = None
        self._seen = 0
        self._reach = 0

    def update(self, history: StepHistory, columns: int, *, single: bool) -> None:
        """Take in what is new; ``columns`` is the width of the chart, ``single`` one step a column."""
        columns = max(1, min(columns, MAX_COLUMNS))
        wanted = 1 if single else self._wanted(history, columns)
        restart = history is not self._history or history.appended < self._seen or columns > self._reach
        if restart or wanted != self.steps_per_column:
            self._history, self.steps_per_column, self._reach = history, wanted, columns
            self._columns.clear()
            self._seen = history.appended - min(len(history), wanted * columns)
        new = history.appended - self._seen
        self._seen = history.appended
        for record in history.last(new):
            self._add(record)

    def _add(self, record: StepRecord) -> None:
        number = record.index // self.steps_per_column
        if not self._columns or self._columns[-1].number != number:
            self._columns.append(Column(number))
        self._columns[-1].add(record)

    def _wanted(self, history: StepHistory, columns: int) -> int:
        latest = history.latest
        if latest is None:
            return self.steps_per_column
        percentiles = history.percentiles()
        typical_ms = max(0.05, percentiles.p50 if percentiles else latest.ms.total)
        ideal = min(TARGET_SPAN_S * 1000 / typical_ms, len(history)) / columns
        # Stay while within a factor of two either way: a chart that rescales at every step cannot be read.
        if ideal / 2 <= self.steps_per_column <= ideal * 2 and self._columns:
            return self.steps_per_column
        power = 1
        while power * 2 <= ideal:
            power *= 2
        return power

    def last(self, count: int) -> list[Column]:
        """The newest ``count`` columns, oldest first."""
        size = len(self._columns)
        return [self._columns[index] for index in range(max(0, size - count), size)]
