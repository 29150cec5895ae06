"""Step: how long each step takes, where the time goes, and how fast tokens come."""

from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.renderables.digits import DIGITS, DIGITS3X3_BOLD

from engine.records import StepRecord
from tui_infer.history import Ratio, decode_rows
from tui_infer.keys import JUMP_KEYS, bindings_of
from tui_infer.landmarks import Landmark, next_landmark, none_left
from tui_infer.widgets.inspector.chart import AXIS_WIDTH, chart_notes, decode_chart, flat_chart, prefill_lane
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import (
    Line,
    fit,
    gauge,
    joined,
    milliseconds,
    rate,
    spread,
    stacked,
    width_of,
)
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.record import position_at, record_at, record_lines
from tui_infer.widgets.inspector.series import Column


class StepPanel(Panel):
    """The newest step and the chart of those before; with a cursor on the chart, the record under it."""

    NAME = "Step"
    HINTS = (
        ("←→", "column"),
        (", .", "one step"),
        ("jump-eager-back jump-eager-on", "eager step"),
        ("jump-change-back jump-change-on", "graph change"),
        ("Enter", "go there"),
        ("End", "newest"),
    )
    BINDINGS = [
        Binding("left", "column(-1)", "earlier", show=False),
        Binding("right", "column(1)", "later", show=False),
        Binding("pageup", "column(-10)", "earlier", show=False),
        Binding("pagedown", "column(10)", "later", show=False),
        Binding("comma", "one(-1)", "one step back", show=False),
        Binding("full_stop", "one(1)", "one step on", show=False),
        *bindings_of(JUMP_KEYS),
        Binding("home", "oldest", "oldest in view", show=False),
        Binding("end", "newest", "newest", show=False),
        Binding("enter", "choose", "show that step", show=False),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor: int | None = None  # number of the step under it
        self._columns: list[Column] = []
        self._chart_end = 0

    # --- cursor --------------------------------------------------------------------------------

    def _put(self, step: int | None) -> None:
        self.cursor = step
        self.redraw()

    def action_column(self, by: int) -> None:
        """To the slowest step of the column beside."""
        if not self._columns or self._frame is None:
            return
        per_column = self._frame.series.steps_per_column
        last = len(self._columns) - 1
        if self.cursor is None:
            place = last if by < 0 else 0
        else:
            number = self.cursor // per_column
            here = next((i for i, column in enumerate(self._columns) if column.number >= number), last)
            place = min(last, max(0, here + by))
        self._put(self._columns[place].peak_step)

    def action_one(self, by: int) -> None:
        """One step back or on."""
        history = self._frame.view.history if self._frame else None
        if history is None or not len(history):
            return
        start = self.cursor if self.cursor is not None else history[-1].index - by
        record = record_at(history, min(history[-1].index, max(history[0].index, start + by)))
        self._put(record.index)

    def action_jump(self, what: Landmark, by: int) -> None:
        """To the landmark before or after; the newest step itself is before the newest."""
        view = self._frame.view if self._frame else None
        if view is None or not len(view.history):
            return
        history = view.history
        here = len(history) if by < 0 else len(history) - 1
        if self.cursor is not None:
            here = position_at(history, self.cursor)
        found = next_landmark(history, what, by, here)
        if found is not None:
            self._put(history[found].index)
        elif view.at is not None and by > 0:  # what is later than the moment is a matter of time
            self.post_message(self.JumpWanted(what, by))
        else:
            step = history[here].index if here < len(history) else history[-1].index + 1
            why = none_left(what, by, step, history[0 if by < 0 else -1].index)
            self.app.notify(why, title=self.NAME, timeout=4, markup=False)

    def action_oldest(self) -> None:
        if self._columns:
            self._put(self._columns[0].peak_step)

    def action_newest(self) -> None:
        self._put(None)

    def action_choose(self) -> None:
        if self.cursor is not None:
            self.post_message(self.StepChosen(self.cursor))

    def on_blur(self) -> None:
        self._put(None)

    def on_click(self, event: events.Click) -> None:
        place = len(self._columns) - (self._chart_end - event.x)
        if 0 < event.y < self.size.height - 1 and 0 <= place < len(self._columns):
            self._put(self._columns[place].peak_step)

    def _ratio(self, frame: Frame) -> tuple[Ratio | None, int]:
        """Graph against eager at the batch size of the step that is shown, or at the nearest one that was
        measured; and that step's size, where it is another one, else 0.
        """
        history, record = frame.view.history, frame.latest
        if record is not None and self.cursor is not None:
            record = record_at(history, self.cursor)
        rows = (decode_rows(record) if record is not None else 0) or history.decode_batch
        ratio = history.nearest_ratio(rows)
        return ratio, 0 if ratio is None or ratio.batch == rows else rows

    def headline(self, frame: Frame, width: int) -> Line:
        """Graph against eager, once both were measured; it says so where that was at another batch size."""
        ratio, other = self._ratio(frame)
        if ratio is None:
            return []
        ink = frame.ink
        where: Line = [(f"batch {ratio.batch}, not {other}: ", ink.dim)] if other else []
        size = "" if other else f" at batch {ratio.batch}"
        speed = (f"{ratio.speedup:.1f}×", ink.graph)
        long: Line = [*where, ("graph ", ink.dim), speed, (f" as fast as eager{size}", ink.dim)]
        short: Line = [*where, speed, (f" eager{size}", ink.dim)]
        return long if width_of(long) <= width - len(self.NAME) - 5 else short

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        ink, record = frame.ink, frame.latest
        if record is None:
            return [[(frame.waiting_text, ink.dim)]]
        if self.cursor is not None:
            record = record_at(frame.view.history, self.cursor)
            self.cursor = record.index
            details = record_lines(frame, record, width)[: height if height < 4 else height - 2]
            return [*self._chart(frame, width, height - len(details)), *details]
        tall = height >= 10
        lines = self._hero(frame, record, width) if tall else [self._one_line(frame, record, width)]
        below: list[Line] = []
        if height >= 3:
            below += self._shares(frame, width, bars=height >= 4, device_bar=tall)
        if height >= 5:
            below.append(self._percentiles(frame, width))
        room = height - len(lines) - len(below)
        return [*lines, *self._chart(frame, width, room), *below]

    # --- the newest step -----------------------------------------------------------------------

    def _one_line(self, frame: Frame, record: StepRecord, width: int) -> Line:
        ink = frame.ink
        number = ink.strong if frame.activity in ("live", "paused", "past") else ink.dim
        left: Line = [(f"{milliseconds(record.ms.total)} ms", number)]
        speed = self._speed(frame)
        if speed:
            left += [("  ", ink.dim), *speed]
        return spread(left, self._which(frame, record), width, ink.dim)

    def _hero(self, frame: Frame, record: StepRecord, width: int) -> list[Line]:
        """The number in three rows of digits, the facts beside it."""
        ink = frame.ink
        style = ink.mode(record.mode) if record.kind != "prefill" else ink.prefill
        style = style if frame.activity in ("live", "paused", "past") else ink.dim
        digits = _large(milliseconds(record.ms.total), style)
        facts = [self._which(frame, record), self._speed(frame), self._compared(frame)]
        lines: list[Line] = []
        for row, (digit, fact) in enumerate(zip(digits, facts)):
            unit = " ms " if row == 2 else "    "
            left: Line = [digit, (unit, ink.dim)]
            lines.append(spread(left, fit(fact, max(0, width - width_of(left) - 1)), width, ink.dim))
        return lines

    def _which(self, frame: Frame, record: StepRecord) -> Line:
        ink = frame.ink
        kind = ink.prefill if record.kind == "prefill" else ink.text
        line: Line = [
            ("step ", ink.dim),
            (f"{record.index:,}", ink.text),
            ("  ", ink.dim),
            (record.kind, kind),
        ]
        if record.graph_size is not None:
            line += [(" ", ink.dim), (f"graph {record.graph_size}", ink.graph)]
            if record.kind == "mixed":
                line += [(" + ", ink.faint), ("eager prefill", ink.prefill)]
        elif decode_rows(record):
            line += [(" ", ink.dim), ("eager", ink.eager)]
        return line

    def _speed(self, frame: Frame) -> Line:
        ink, history = frame.ink, frame.view.history
        if frame.activity == "idle":
            return [("idle", ink.dim)]
        decode, prefill = history.tokens_per_s(), history.prefill_tokens_per_s()
        line: Line = []
        if decode is not None:
            line += [(rate(decode), ink.strong), (" tok/s", ink.dim)]
        if prefill is not None:
            line += [
                (" + " if line else "", ink.faint),
                (rate(prefill), ink.prefill),
                (" prefill tok/s", ink.dim),
            ]
        return line

    def _compared(self, frame: Frame) -> Line:
        ink = frame.ink
        ratio, other = self._ratio(frame)
        if ratio is None:
            dropped = frame.view.history.dropped
            return [(f"{dropped:,} steps not received", ink.warn)] if dropped else []
        return [
            (f"batch {ratio.batch}: graph " if other else "median graph ", ink.dim),
            (milliseconds(ratio.graph_ms), ink.graph),
            (" eager ", ink.dim),
            (milliseconds(ratio.eager_ms), ink.eager),
            (" ms", ink.dim),
        ]

    # --- over time -----------------------------------------------------------------------------

    def _chart(self, frame: Frame, width: int, room: int) -> list[Line]:
        ink, series = frame.ink, frame.series
        if room < 1:
            return []
        columns = series.last(width if room < 3 else max(1, width - AXIS_WIDTH))
        self._columns, self._chart_end = columns, 2 + width
        cursor = None if self.cursor is None else self.cursor // series.steps_per_column
        legend = chart_notes(columns, series.steps_per_column, ink, flat=room < 3)
        notes = joined(legend, ("  ", ink.dim), width)
        if room < 3:
            pad = " " * (width - len(columns))
            return [[(pad, ink.dim), *flat_chart(columns, ink, cursor)], notes][:room]
        if room < 5:
            return [*decode_chart(columns, width, room - 1, ink, cursor), notes]
        lane = prefill_lane(columns, width, ink, cursor)
        return [*decode_chart(columns, width, room - 2, ink, cursor), lane, notes]

    def _shares(self, frame: Frame, width: int, *, bars: bool, device_bar: bool) -> list[Line]:
        """The host's time as a stacked bar, and under it how much of it the device was busy."""
        ink = frame.ink
        shares = frame.view.history.time_shares()
        if shares is None:
            return []
        on_device = shares.device is not None
        launch = "launch" if on_device else "compute"
        parts = [
            ("schedule", shares.schedule, ink.schedule),
            (launch, shares.launch, ink.launch),
            ("read", shares.read, ink.read),
        ]
        rest = max(0.0, shares.total - sum(ms for _, ms, _ in parts))
        if rest > 0.05 * shares.total:
            parts.append(("other", rest, ink.faint))
        total = max(shares.total, sum(ms for _, ms, _ in parts), 1e-9)
        lines: list[Line] = []
        legend: list[Line] = [
            [(f"{name} ", style), (milliseconds(ms), ink.text)] for name, ms, style in parts
        ]
        if shares.device is not None:
            legend.insert(2, [("device ", ink.device), (milliseconds(shares.device), ink.text)])
        if bars:
            label_width = 7 if on_device and device_bar else 0
            room = width - label_width - (6 if label_width else 0)
            bar = stacked([(ms / total, style) for _, ms, style in parts], room, ink.free)
            lines.append([("host   "[:label_width], ink.dim), *bar])
            if shares.device is not None and device_bar:
                percent = f" {100 * shares.device / total:3.0f} %"
                busy = gauge(shares.device / total, width - label_width - len(percent), ink.device, ink.free)
                lines.append([("device "[:label_width], ink.dim), *busy, (percent, ink.text)])
        numbers = joined(legend, ("  ", ink.dim), width)
        lines.append(joined([numbers, [("ms", ink.dim)]], (" ", ink.dim), width))
        return lines

    def _percentiles(self, frame: Frame, width: int) -> Line:
        ink, numbers = frame.ink, frame.view.history.percentiles()
        if numbers is None:
            return [("no decode step yet", ink.dim)]
        left: Line = []
        for name, ms in (("p50", numbers.p50), ("p95", numbers.p95), ("p99", numbers.p99)):
            left += [(f"{name} ", ink.dim), (milliseconds(ms), ink.text), ("  ", ink.dim)]
        left[-1] = (" ms", ink.dim)
        return spread(left, [(f"{numbers.steps:,} decode steps", ink.faint)], width, ink.dim)


def _large(number: str, style: Style) -> list[tuple[str, Style]]:
    """Three rows of large digits."""
    rows = ["", "", ""]
    for character in number:
        position = DIGITS.find(character)
        if character in ".," or position < 0:
            pieces = [" ", " ", character]
        else:
            pieces = [line.ljust(3) for line in _FONT[position * 3 : position * 3 + 3]]
        rows = [row + piece for row, piece in zip(rows, pieces)]
    return [(row, style) for row in rows]


_FONT: list[str] = DIGITS3X3_BOLD
