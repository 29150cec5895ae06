"""A/B card: graph against eager on the same chats, by batch size."""

from textual.binding import Binding
from textual.message import Message

from tui_infer.ab import AbRow, AbRun
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, fit, gauge, milliseconds
from tui_infer.widgets.inspector.panel import Panel

HEAD = 2
WITH_HOST = 47  # cells from which host and device stand in the row


class AbPanel(Panel):
    """Stays until it is closed; it can be taken away as text."""

    NAME = "A/B"
    HINTS = (("w", "write a file"), ("y", "copy"), ("x", "close"))
    BINDINGS = [
        Binding("w", "take('write')", "write a file", show=False),
        Binding("y", "take('copy')", "copy", show=False),
    ]

    class Taken(Message):
        """The card is wanted as text: ``copy`` or ``write``."""

        def __init__(self, how: str) -> None:
            super().__init__()
            self.how = how

    def action_take(self, how: str) -> None:
        self.post_message(self.Taken(how))

    def headline(self, frame: Frame, width: int) -> Line:
        ink, run = frame.ink, frame.view.ab
        if run is None:
            return []
        if run.running and run.mode:
            return [(f"measuring {run.mode}", ink.mode(run.mode))]
        return [("done", ink.ok)] if run.outcome == "done" else [("stopped", ink.warn)]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        ink, run = frame.ink, frame.view.ab
        if run is None:
            return []
        lines = [self._progress(frame, run, width), fit([(_header(width), ink.dim)], width)]
        rows = sorted(run.rows(), key=lambda row: row.eager_steps + row.graph_steps, reverse=True)
        fitting = sorted(rows[: max(0, height - HEAD)])
        split = width < WITH_HOST and height >= HEAD + 2 * len(fitting)
        for row in fitting:
            lines.append(self._row(frame, row, width))
            if split:
                lines.append(
                    fit([("     host ", frame.ink.dim), *self._host(frame, row, "  device ")], width)
                )
        return lines[:height]

    def _progress(self, frame: Frame, run: AbRun, width: int) -> Line:
        ink = frame.ink
        if run.note:
            return fit([(run.note, ink.warn)], width)
        eager, graph = len(run.taken["eager"]), len(run.taken["graph"])
        if not run.running:
            return fit(
                [(f"{eager} eager and {graph} graph steps", ink.text), (f"  {run.what}", ink.dim)], width
            )
        said = f" {eager + graph} of {2 * run.steps} steps"
        bar = gauge((eager + graph) / (2 * run.steps), max(1, width - len(said)), ink.graph, ink.free)
        return [*bar, (said, ink.dim)]

    def _row(self, frame: Frame, row: AbRow, width: int) -> Line:
        ink = frame.ink
        line: Line = [(f"{row.batch:>4}", ink.strong)]
        line.append((f"{_ms(row.eager_ms):>7}", ink.eager))
        line.append((f"{_ms(row.graph_ms):>7}", ink.graph))
        ratio = f"{row.ratio:.2f}×" if row.ratio is not None else "–"
        line.append((f"{ratio:>7}", ink.strong))
        if width >= WITH_HOST:
            line += self._host(frame, row, "")
        if width >= 57:
            line.append((f"{f'{row.eager_steps}+{row.graph_steps}':>10}", ink.dim))
        return fit(line, width)

    def _host(self, frame: Frame, row: AbRow, between: str) -> Line:
        """Host and device time, eager → graph."""
        ink = frame.ink
        host = f"{_ms(row.eager_host_ms)}→{_ms(row.graph_host_ms)}"
        device = f"{_ms(row.eager_device_ms)}→{_ms(row.graph_device_ms)}"
        cells = 0 if between else 11
        return [(f"{host:>{cells}}", ink.launch), (between, ink.dim), (f"{device:>{cells}}", ink.device)]


def _header(width: int) -> str:
    text = f"{'rows':>4}{'eager':>7}{'graph':>7}{'ratio':>7}"
    if width >= WITH_HOST:
        text += f"{'host':>11}{'device':>11}"
    return text + (f"{'steps':>10}" if width >= 57 else "")


def _ms(value: float | None) -> str:
    return "–" if value is None else milliseconds(value)


def ab_rows(run: AbRun | None) -> int:
    """Rows that the card can use; 0 without one."""
    return HEAD + max(1, len(run.rows())) if run is not None else 0
