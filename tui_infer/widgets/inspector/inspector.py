"""The inspector: panels that show what the engine does, drawn from one view at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from textual import events
from textual.app import ComposeResult
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.timer import Timer
from textual.widget import Widget

from tui_infer.widgets.inspector.batch import BatchPanel
from tui_infer.widgets.inspector.frame import Frame, activity_of, glow_since
from tui_infer.widgets.inspector.gpu import GpuPanel, gpu_rows
from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.kvmap import MAP_NOTES, KVPanel
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.plan import TWO_COLUMNS, plan_rows
from tui_infer.widgets.inspector.series import StepSeries
from tui_infer.widgets.inspector.step import StepPanel
from tui_infer.widgets.inspector.table import TablePanel
from tui_infer.widgets.inspector.view import InspectorView, graph_failures

QUIET_AFTER_S = 1.2
PANELS = ("batch", "step", "kv", "table", "gpu")


@dataclass(frozen=True, slots=True)
class Needs:
    """What decides over the rows of the panels; it changes with the engine, not with its steps."""

    gpu_rows: int = 1
    graphs: bool = False
    failures: bool = False
    reason: int = 0
    blocks: int = 0

    @classmethod
    def of(cls, view: InspectorView) -> "Needs":
        status = view.status
        return cls(
            gpu_rows=gpu_rows(status, view.gpu),
            graphs=bool(status and status.graph_sizes),
            failures=bool(status and graph_failures(status)),
            reason=len(view.mode_reason),
            blocks=view.mirror.num_blocks,
        )


class PanelLayout(Layout):
    """Panels at the places that the inspector planned; styles are not asked, so nothing can overflow."""

    name = "panels"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        assert isinstance(parent, Inspector)
        places = parent.place(size)
        return [
            WidgetPlacement(places.get(child.id or "", Region()), NULL_OFFSET, NULL_SPACING, child)
            for child in children
        ]


class Inspector(Widget):
    """Batch, step, KV map, block table and GPU, one above the other or in two columns where it is wide.

    ``show`` may be called as often as the app likes; each call redraws the lines that changed. When no
    step follows, the inspector fades what glows by itself, once.
    """

    DEFAULT_CSS = """
    Inspector { background: $background; height: 1fr; width: 1fr; }
    """

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._view: InspectorView | None = None
        self._ink: Ink | None = None
        self._series = StepSeries()
        self._seen: tuple[int, int] = (-1, -1)
        self._moved_at = monotonic()
        self._quiet_timer: Timer | None = None
        self._needs = Needs()
        self._panel_layout = PanelLayout()

    @property
    def layout(self) -> Layout:
        """Textual looks layouts up by name in styles; this one is ours alone."""
        return self._panel_layout

    def compose(self) -> ComposeResult:
        yield BatchPanel(id="batch")
        yield StepPanel(id="step")
        yield KVPanel(id="kv")
        yield TablePanel(id="table")
        yield GpuPanel(id="gpu")

    def on_mount(self) -> None:
        self.watch(self.app, "theme", self._theme_changed, init=False)

    # --- what the app calls --------------------------------------------------------------------

    def show(self, view: InspectorView) -> None:
        """Draw this view."""
        self._view = view
        seen = (view.history.version, view.mirror.version)
        if seen != self._seen:
            self._seen = seen
            self._moved_at = monotonic()
            self._await_quiet()
        needs = Needs.of(view)
        if needs != self._needs:
            self._needs = needs
            self._clear_arrangement_cache()  # which a refresh leaves to what is above
            self.refresh(layout=True)
        self._draw()

    # --- drawing -------------------------------------------------------------------------------

    @property
    def _quiet(self) -> bool:
        return monotonic() - self._moved_at >= QUIET_AFTER_S

    def _draw(self) -> None:
        view = self._view
        if view is None or not self.is_attached or not self.display or not self.size.area:
            return
        if self._ink is None:
            self._ink = Ink(self.app.current_theme)
        activity = activity_of(view)
        step = self.query_one("#step", Panel)
        self._series.update(view.history, step.size.width - 9, single=activity == "paused")
        glow = glow_since(view, activity, quiet=self._quiet)
        frame = Frame(view, self._ink, self._series, activity, glow)
        for panel in self._panels():
            if panel.size.height:
                panel.draw(frame)

    def _panels(self) -> Iterable[Panel]:
        return self.query_children(Panel)

    def _await_quiet(self) -> None:
        if self._quiet_timer is None and self.is_attached:
            self._quiet_timer = self.set_timer(QUIET_AFTER_S + 0.05, self._maybe_quiet)

    def _maybe_quiet(self) -> None:
        self._quiet_timer = None
        if self._quiet:
            self._draw()
        else:
            left = QUIET_AFTER_S - (monotonic() - self._moved_at)
            self._quiet_timer = self.set_timer(max(0.05, left + 0.05), self._maybe_quiet)

    def _theme_changed(self) -> None:
        self._ink = None
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        # The panels learn their own new size first; drawing now would draw the old one.
        self.call_after_refresh(self._draw)

    # --- placing -------------------------------------------------------------------------------

    def place(self, size: Size) -> dict[str, Region]:
        """Where each panel goes in an area of this size; panels without a place are not shown."""
        width, height = size
        wide = width >= TWO_COLUMNS
        column = width // 2 if wide else width
        needs = self._needs
        most = {
            "batch": 6 + needs.failures if needs.graphs else 5 if needs.reason > column - 24 else 4,
            "table": 4 if height >= 50 else 3,
            "gpu": needs.gpu_rows,
        }
        if wide:
            right = Region(column, 0, width - column, height)
            return {
                **self._column(("batch", "step", "gpu"), Region(0, 0, column, height), most, ("step",)),
                **self._column(("kv", "table"), right, most, ("kv", "table")),
            }
        return self._column(PANELS, Region(0, 0, width, height), most, ("kv", "step"))

    def _column(
        self, names: tuple[str, ...], area: Region, most: dict[str, int], greedy: Sequence[str]
    ) -> dict[str, Region]:
        rows: dict[str, int] = {}
        for cells_per_block in (2, 1):
            map_rows = -(-self._needs.blocks * cells_per_block // max(1, area.width - 4))
            most = most | {"kv": max(6, map_rows + MAP_NOTES)}
            rows = plan_rows(names, area.height, most, greedy=greedy)
            if rows.get("kv", 0) >= map_rows + MAP_NOTES:
                break
        places: dict[str, Region] = {}
        y = area.y
        shown = [name for name in names if name in rows]
        for name in shown:
            closes = name == shown[-1]
            height = rows[name] + 1 + closes
            places[name] = Region(area.x, y, area.width, height)
            y += height
            panel = self.query_one(f"#{name}", Panel)
            panel.opens, panel.closes = name == shown[0], closes
        return places
