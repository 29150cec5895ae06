"""A/B: the same chats by eager steps and by graphs in turn, and what each took. Plain data, no Textual."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from engine.records import StepMode, StepRecord
from tui_infer.history import decode_rows

STEPS = 60
MOST_STEPS = 2000
ROUND = 15  # steps in one go: slow drifts of the machine hit both sides alike
SETTLE = 2  # steps after a switch that are not counted
PATIENCE_S = 3.0  # of steps in the other mode, before the switch is asked for again
GIVEN_UP = 50  # decode steps that ran eager although graphs were asked for

Outcome = Literal["running", "done", "stopped"]


class AbRow(NamedTuple):
    """Medians of the steps with ``batch`` rows, milliseconds. Host is wall time less device time, step by
    step; None where a side had no such steps, or the device was not measured.
    """

    batch: int
    eager_steps: int
    graph_steps: int
    eager_ms: float | None
    graph_ms: float | None
    eager_host_ms: float | None
    graph_host_ms: float | None
    eager_device_ms: float | None
    graph_device_ms: float | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast the graph was."""
        return self.eager_ms / self.graph_ms if self.eager_ms and self.graph_ms else None


@dataclass
class AbRun:
    """``steps`` decode steps of each mode in rounds, eager first; steps that prefill are left out.

    ``set_mode`` asks the engine for a mode. However it ends, ``restore`` is asked for.
    """

    steps: int
    restore: StepMode
    set_mode: Callable[[StepMode], None]
    what: str = ""
    outcome: Outcome = "running"
    note: str = ""
    taken: dict[StepMode, list[StepRecord]] = field(default_factory=lambda: {"eager": [], "graph": []})
    _plan: list[tuple[StepMode, int]] = field(default_factory=list)
    _settling: int = SETTLE
    _asked_t: float | None = None
    _refused: int = 0

    def __post_init__(self) -> None:
        left = self.steps
        while left > 0:
            count = min(ROUND, left)
            self._plan += [("eager", count), ("graph", count)]
            left -= count

    @property
    def running(self) -> bool:
        return self.outcome == "running"

    @property
    def mode(self) -> StepMode | None:
        """The mode that is measured now."""
        return self._plan[0][0] if self._plan and self.running else None

    def begin(self) -> None:
        self._ask()

    def observe(self, records: Iterable[StepRecord]) -> None:
        """Take in the engine's steps, in order."""
        for record in records:
            if self.running and self._plan:
                self._take(record)

    def stop(self, note: str) -> None:
        """End before the time; what was measured stays."""
        if self.running:
            self._end("stopped", note)

    def _take(self, record: StepRecord) -> None:
        mode, count = self._plan[0]
        if record.kind != "decode":
            return
        if record.mode != mode:
            self._wrong_mode(record)
            return
        self._asked_t = None
        if self._settling:
            self._settling -= 1
            return
        self.taken[mode].append(record)
        if count > 1:
            self._plan[0] = (mode, count - 1)
            return
        del self._plan[0]
        if self._plan:
            self._ask()
        else:
            self._end("done", "")

    def _wrong_mode(self, record: StepRecord) -> None:
        """Steps that were under way when the mode was switched; or the engine does not do as asked."""
        if self.mode == "graph" and "chosen" not in record.reason:
            self._refused += 1
            if self._refused >= GIVEN_UP:
                self._end("stopped", f"no graph was replayed: {record.reason}")
                return
        if self._asked_t is None:
            self._asked_t = record.t
        elif record.t - self._asked_t > PATIENCE_S:
            self._ask()

    def _ask(self) -> None:
        self._settling, self._asked_t, self._refused = SETTLE, None, 0
        self.set_mode(self._plan[0][0])

    def _end(self, outcome: Outcome, note: str) -> None:
        self.outcome, self.note = outcome, note
        self._plan.clear()
        self.set_mode(self.restore)

    def rows(self) -> list[AbRow]:
        """One row for each batch size that was seen."""
        batches: dict[int, dict[StepMode, list[StepRecord]]] = {}
        for mode, records in self.taken.items():
            for record in records:
                sides = batches.setdefault(decode_rows(record), {"eager": [], "graph": []})
                sides[mode].append(record)
        return [_row(batch, sides["eager"], sides["graph"]) for batch, sides in sorted(batches.items())]

    def text(self) -> str:
        """The card as text, for a file or the clipboard."""
        lines = [f"eager against graph, {self.what}: decode steps, medians in ms, prefill left out"]
        lines.append(
            f"{'rows':>4} {'eager':>6} {'graph':>6} {'eager ms':>9} {'graph ms':>9} {'ratio':>6} "
            f"{'host e':>8} {'host g':>8} {'device e':>9} {'device g':>9}"
        )
        for row in self.rows():
            ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
            lines.append(
                f"{row.batch:>4} {row.eager_steps:>6} {row.graph_steps:>6} {_ms(row.eager_ms):>9} "
                f"{_ms(row.graph_ms):>9} {ratio:>6} {_ms(row.eager_host_ms):>8} {_ms(row.graph_host_ms):>8} "
                f"{_ms(row.eager_device_ms):>9} {_ms(row.graph_device_ms):>9}"
            )
        if self.note:
            lines.append(f"{self.outcome}: {self.note}")
        return "\n".join(lines) + "\n"


def _row(batch: int, eager: list[StepRecord], graph: list[StepRecord]) -> AbRow:
    return AbRow(
        batch,
        len(eager),
        len(graph),
        _median(record.ms.total for record in eager),
        _median(record.ms.total for record in graph),
        _median(r.ms.total - r.ms.device for r in eager if r.ms.device is not None),
        _median(r.ms.total - r.ms.device for r in graph if r.ms.device is not None),
        _median(r.ms.device for r in eager if r.ms.device is not None),
        _median(r.ms.device for r in graph if r.ms.device is not None),
    )


def _median(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return median(numbers) if numbers else None


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
